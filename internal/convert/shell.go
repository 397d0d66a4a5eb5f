package convert

import "strings"

// inShell makes commands run in a shell of their kind, whatever shell reads
// them: SkyPilot's are for bash, and ours may be read by another sh. Where that
// shell is not installed, sh does it.
func inShell(shell, commands string) string {
	end := "END_OF_COMMANDS"
	for strings.Contains("\n"+commands+"\n", "\n"+end+"\n") {
		end += "_"
	}
	return `exec "$(command -v ` + shell + ` || echo sh)" -c "$(cat <<'` + end + "'\n" + strings.TrimSuffix(commands, "\n") + "\n" + end + "\n)\"\n"
}

// fetchRepository is a command that puts a repository into the folder that it
// runs in. It works in one that is not empty, too.
func fetchRepository(url, ref string) string {
	if ref == "" {
		ref = "HEAD"
	}
	return "[ -d .git ] || { git init -q . && git fetch -q " + quote(url) + " " + quote(ref) + " && git checkout -q -f FETCH_HEAD; } || exit 1\n"
}

// quote makes a shell's word of a text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quotePath is quote for a path that may begin in the home folder.
func quotePath(s string) string {
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		return `"$HOME"/` + quote(rest)
	}
	return quote(s)
}
