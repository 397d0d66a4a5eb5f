// Command destajo answers where a GPU job costs least when it is finished, runs
// it there, and accounts for it.
package main

import (
	"os"
	"runtime/debug"

	"github.com/destajo/destajo/internal/cli"
)

func main() {
	// A command that looks something up has ended before a collection pays:
	// plan takes a fifth less time. What stays asks for the usual percentage.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
