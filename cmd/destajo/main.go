// Command destajo answers where a GPU job costs least when it is finished.
package main

import (
	"os"

	"github.com/destajo/destajo/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], cli.System())) }
