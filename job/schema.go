package job

import "encoding/json"

// schema is a JSON Schema (draft 2020-12) of one value.
type schema map[string]any

var (
	textSchema     = schema{"type": "string"}
	integerSchema  = schema{"type": "integer"}
	numberSchema   = schema{"type": "number"}
	boolSchema     = schema{"type": "boolean"}
	countSchema    = schema{"type": []string{"number", "string"}, "pattern": `^[0-9._]+ ?[KkMBGT]?$`}
	bytesSchema    = schema{"type": "string", "pattern": `^[0-9.]+ ?([KkMmGgTtPp][Ii]?)?[Bb][+]?$`, "examples": []string{"40GB"}}
	durationSchema = schema{"type": "string", "pattern": `^([0-9.]+ ?(ms|mo|s|m|h|d|w) ?)+$`, "examples": []string{"1h30m"}}
)

func enumSchema(words ...string) schema { return schema{"enum": words} }
func mapSchema(of schema) schema        { return schema{"type": "object", "additionalProperties": of} }
func anySchema(of ...schema) schema     { return schema{"anyOf": of} }

// listSchema is a list, or a single element in its place.
func listSchema(of schema) schema {
	return anySchema(of, schema{"type": "array", "items": of})
}

// objectSchema is an object with the fields that its reader knows.
func objectSchema(fields func(*decoder) []field) schema {
	properties := schema{}
	for _, f := range fields(&decoder{}) {
		s := schema{"description": f.doc}
		for k, v := range f.is {
			s[k] = v
		}
		properties[f.key] = s
	}
	return schema{"type": "object", "additionalProperties": false, "properties": properties}
}

// Schema is the JSON Schema of the job file, made from the same table that
// Parse reads by.
func Schema() ([]byte, error) {
	s := objectSchema(func(d *decoder) []field { return (&Spec{}).fields(d) })
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "destajo job"
	return json.MarshalIndent(s, "", "  ")
}
