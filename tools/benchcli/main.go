// Command benchcli measures whole processes: `destajo plan` and `destajo
// version` beside a program that prints hello and imports cobra, turn by turn
// in one run, so that a noisy machine is noisy to all of them.
//
//	go run ./tools/benchcli bin/destajo
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const rounds = 100

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchcli:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: benchcli PATH-OF-DESTAJO")
	}
	dir, err := os.MkdirTemp("", "benchcli")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	hello := filepath.Join(dir, "hello")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", hello, "./tools/benchcli/hello")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	commands := [][]string{
		{hello},
		{os.Args[1], "version"},
		{os.Args[1], "plan", "examples/lora-7b.yml"},
		{os.Args[1], "plan", "examples/lora-7b.yml", "--offers", "examples/vast-july-2026.csv"},
		{os.Args[1], "offers", "H100", "--top", "5"},
	}
	times := make([][]time.Duration, len(commands))
	for round := range rounds + 5 {
		for i, c := range commands {
			cmd := exec.Command(c[0], c[1:]...)
			cmd.Env = append(os.Environ(), "DESTAJO_HOME="+dir)
			start := time.Now()
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			if round >= 5 { // the first rounds warm the page cache
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	base := 0.0
	fmt.Printf("%-60s %10s %8s\n", "command", "median ms", "x hello")
	for i, c := range commands {
		slices.Sort(times[i])
		ms := float64(times[i][rounds/2].Microseconds()) / 1000
		if i == 0 {
			base = ms
		}
		name := filepath.Base(c[0])
		for _, w := range c[1:] {
			name += " " + w
		}
		fmt.Printf("%-60s %10.2f %8.2f\n", name, ms, ms/base)
	}
	return nil
}
