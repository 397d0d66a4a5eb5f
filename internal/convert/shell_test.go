package convert

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/job"
)

// TestConverted runs converted commands as the agent does, in sh: what they print
// and how they end must be as in the shell that the file was written for.
func TestConverted(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"/bin/sh", "bash"} {
		if _, err := exec.LookPath(shell); err != nil {
			t.Skipf("no %s here", shell)
		}
	}
	const bashism = "names=(one \"it's two\" three)\nfor n in \"${names[@]}\"; do [[ $n == t* ]] && echo \"$n)\"; done\ncat <<EOF\n'quotes \"and ( more\nEOF\ncat\nexit 7"
	sky := func(run string) string { return "run: |\n  " + strings.ReplaceAll(run, "\n", "\n  ") + "\n" }
	for _, c := range []struct {
		name, format, file, want string
		code                     int
	}{
		{"arrays, tests, documents, input", "skypilot", sky(bashism), "three)\n'quotes \"and ( more\ninput\n", 7},
		{"the end of the document in the commands", "skypilot", sky("cat <<'END_OF_COMMANDS'\n[x]\nEND_OF_COMMANDS"), "[x]\n", 0},
		{"one host", "skypilot", sky("echo $SKYPILOT_NODE_RANK $SKYPILOT_NUM_NODES \"$SKYPILOT_NODE_IPS\" $SKYPILOT_NUM_GPUS_PER_NODE $SKYPILOT_TASK_ID"), "1 2 10.0.0.1\n10.0.0.2 8 j1\n", 0},
		{"in setup", "skypilot", "run: x\nsetup: echo $SKYPILOT_SETUP_NODE_RANK ${SKYPILOT_SETUP_NODE_IPS/*./}", "1 2\n", 0},
		{"commands joined", "dstack", "type: task\ncommands: ['[[ $DSTACK_NODES_NUM == 2 ]]', 'echo $DSTACK_GPUS_NUM {a,b}', 'false', 'echo no']", "16 a b\n", 1},
		{"sh of an image", "dstack", "type: task\nimage: x\ncommands: ['echo {a,b}', 'echo $0']", "{a,b}\n/bin/sh\n", 0},
		{"bash of an image", "dstack", "type: task\nimage: x\nshell: bash\ncommands: ['echo {a,b}']", "a b\n", 0},
		{"a path", "dstack", "type: task\nshell: /bin/sh\ncommands: ['echo {a,b}']", "{a,b}\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			results, err := convertFile(c.format, "f.yaml", []byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			spec, err := job.Parse("f.yaml", results[0].YAML)
			if err != nil {
				t.Fatal(err)
			}
			text := spec.Run
			if spec.Setup != "" {
				text = spec.Setup
			}
			cmd := exec.Command("/bin/sh", "-c", text)
			cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "DESTAJO_NODE_RANK=1", "DESTAJO_NODES=2", "DESTAJO_HOSTS=10.0.0.1,10.0.0.2", "DESTAJO_GPUS_PER_NODE=8", "DESTAJO_JOB=j1"}
			cmd.Stdin = strings.NewReader("input\n")
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("ended with %d, want %d: %v", code, c.code, err)
			}
			if d := cmp.Diff(c.want, string(out)); d != "" {
				t.Errorf("-want +got: %s\n%s", d, text)
			}
		})
	}
}
