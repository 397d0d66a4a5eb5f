// Command cmd runs the chaos of package chaos, prints how it goes and what is
// wrong, and last the counts.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/destajo/destajo/internal/chaos"
)

func main() {
	well, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if !well {
		os.Exit(1)
	}
}

// run says whether nothing is wrong.
func run() (bool, error) {
	o := chaos.Options{Jobs: 50, Pace: 1800 * time.Millisecond, DeadMan: 12 * time.Second, Margin: 6 * time.Second, Say: os.Stdout}
	flag.Uint64Var(&o.Seed, "seed", 1, "what is drawn is drawn from it")
	flag.IntVar(&o.Kills, "kills", 120, "how many processes are killed, at least")
	flag.IntVar(&o.Jobs, "jobs", o.Jobs, "how many jobs there are, at least")
	flag.DurationVar(&o.Pace, "pace", o.Pace, "between two kills, on average")
	flag.DurationVar(&o.DeadMan, "dead-man", o.DeadMan, "agents without a word for so long stop their tasks")
	flag.DurationVar(&o.Margin, "margin", o.Margin, "beyond it until a silent machine is given up")
	flag.StringVar(&o.Binary, "binary", "", "destajo; empty: built from here")
	flag.StringVar(&o.Dir, "dir", "", "folder for all that is written, kept; empty: a temporary one, kept when something is wrong")
	flag.Parse()
	keep := o.Dir != ""
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "chaos-")
		if err != nil {
			return false, err
		}
		o.Dir = dir
	}
	if o.Binary == "" {
		o.Binary = filepath.Join(o.Dir, "destajo")
		if out, err := exec.Command("go", "build", "-o", o.Binary, "github.com/destajo/destajo/cmd/destajo").CombinedOutput(); err != nil {
			return false, fmt.Errorf("%w: %s", err, out)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := chaos.Run(ctx, o)
	if err != nil {
		return false, err
	}
	for _, x := range r.Wrong {
		fmt.Println("WRONG:", x)
	}
	fmt.Printf("%d pauses; ledger %s USD, the provider's bill %s USD; %s\n", r.Pauses, r.Ours.Fixed(6), r.Bill.Fixed(6), r.Took.Round(time.Second))
	if len(r.Wrong) == 0 && !keep {
		_ = os.RemoveAll(o.Dir)
	} else {
		fmt.Println("everything is in", o.Dir)
	}
	fmt.Println(r)
	return len(r.Wrong) == 0, nil
}
