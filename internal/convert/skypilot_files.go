package convert

import (
	"slices"
	"strings"
)

// storageKeys are those of a storage object beside the ones that are read.
var storageKeys = []string{"persistent", "mount_options", "type", "config", "_is_sky_managed", "_bucket_sub_path", "_force_delete"}

// mounts reads file_mounts: local files are sent along, buckets are not.
func (s *sky) mounts(v value) {
	for _, p := range s.pairs(v) {
		switch p.value.kind {
		case text, number:
			s.source(p.value, p.key, p.value.text)
		case mapping:
			s.storage(p)
		case null:
		default:
			s.fail(p.value, "expected a path or keys with values, found %s", p.value.what()).Hint("write a local path")
		}
	}
}

// source is one place that files come from.
func (s *sky) source(v value, to, from string) {
	switch {
	case to == "" || from == "":
		s.fail(v, "a path is missing").Hint("write where the files lie and where they shall be, as in /data: ./data")
	case remote(from):
		s.fatal(v, "%s is no local path, and the job would not find %s: fetch it in setup with the bucket's own tool", cut(oneLine(from), 80), cut(oneLine(to), 80))
	default:
		s.d.mounts = append(s.d.mounts, File{from, inWorkdir(to)})
	}
}

// remote says whether a source is a bucket or an address.
func remote(s string) bool {
	scheme, _, cut := strings.Cut(s, "://")
	return cut && scheme != "file" || strings.HasPrefix(s, "skypilot:")
}

// inWorkdir makes a path in SkyPilot's workdir one from the job's folder.
func inWorkdir(to string) string {
	if rest, ok := strings.CutPrefix(to, "~/sky_workdir/"); ok && rest != "" {
		return rest
	}
	return to
}

func (s *sky) storage(p pair) {
	var sources []value
	var name, store, mode string
	kept := []field{
		{"name", s.textInto(&name)},
		{"source", func(v value) { sources = s.items(v) }},
		{"store", s.textInto(&store)},
		{"mode", s.textInto(&mode)},
	}
	for _, key := range storageKeys {
		kept = append(kept, field{key, s.drop("settings of a bucket or volume are not carried over")})
	}
	s.object(p.value, kept)
	where := cut(oneLine(p.key), 80)
	switch {
	case strings.EqualFold(store, "volume"):
		s.fatal(p.value, "volumes are not known here, and the job would not find %s: send files along with mounts, keep them with checkpoint.dir or bring them back with outputs", where)
	case len(sources) == 0:
		s.fatal(p.value, "buckets are not mounted, and what the job writes to %s would be lost: name the folder in outputs to bring it back, or as checkpoint.dir to keep it", where)
	default:
		local := 0
		for _, from := range sources {
			path, ok := s.scalar(from)
			if !ok {
				continue
			}
			to := p.key
			if len(sources) > 1 {
				// SkyPilot puts each of several sources under its own name.
				to = strings.TrimRight(p.key, "/") + "/" + last(path)
			}
			at := value{from.node, p.value.path + ".source", from.line, from.column}
			if s.source(at, to, path); !remote(path) {
				local++
			}
		}
		if local > 0 && !strings.EqualFold(mode, "COPY") {
			s.note(p.value, "the files are sent along and no bucket is made: name the folder in outputs to bring changes back")
		} else if local > 0 && name != "" {
			s.note(p.value, "the files are sent along and no bucket is made")
		}
	}
}

// last is the name at the end of a path.
func last(path string) string {
	parts := strings.Split(strings.TrimRight(path, "/"), "/")
	return parts[len(parts)-1]
}

// volumes reads the map of paths to volumes: one that lives no longer than the
// job is a folder on the machine's disk.
func (s *sky) volumes(v value) {
	for _, p := range s.pairs(v) {
		if p.value.kind == null {
			continue
		}
		passing := p.value.kind == mapping && p.value.get("name") == nil && p.value.get("size") != nil &&
			!slices.ContainsFunc(p.value.entries, func(e entry) bool {
				return e.key != "size" && e.key != "labels" && e.key != "config" && e.key != "type"
			})
		if passing {
			s.d.fetch = "mkdir -p " + quotePath(p.key) + " || exit 1\n" + s.d.fetch
			s.note(p.value, "is a folder on the machine's disk: resources.disk must have room for it")
			continue
		}
		s.fatal(p.value, "volumes are not known here, and the job would not find %s: send files along with mounts, keep them with checkpoint.dir or bring them back with outputs", cut(oneLine(p.key), 80))
	}
}
