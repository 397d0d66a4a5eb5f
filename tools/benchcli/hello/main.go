// Command hello prints hello and imports cobra: the least that a command line
// of this kind costs.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	c := &cobra.Command{Use: "hello", Run: func(*cobra.Command, []string) { fmt.Println("hello") }}
	if err := c.Execute(); err != nil {
		os.Exit(1)
	}
}
