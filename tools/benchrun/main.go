// Command benchrun measures how fast jobs run, as docs/performance.md says, and
// beside it Slurm and task-spooler on the same machine in the same run, where
// they are installed.
//
//	go run ./tools/benchrun bin/destajo [-only NAME]
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/job"
)

type bench struct {
	exe string
	dir string
}

func main() {
	only := flag.String("only", "", "run the measurements whose name begins so")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: benchrun [-only NAME] bin/destajo")
		os.Exit(2)
	}
	exe, err := filepath.Abs(flag.Arg(0))
	if err != nil {
		fatal(err)
	}
	dir, err := os.MkdirTemp("", "destajo-bench-")
	if err != nil {
		fatal(err)
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%d CPUs, %s/%s\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	b := &bench{exe, dir}
	for _, x := range []struct {
		name string
		do   func() error
	}{
		{"start", b.start}, {"array", b.array}, {"list", b.list}, {"many", b.many}, {"end", b.end}, {"agent", b.agent}, {"tsp", b.spooler}, {"slurm", b.slurm},
	} {
		if !strings.HasPrefix(x.name, *only) {
			continue
		}
		if err := x.do(); err != nil {
			fmt.Printf("%-52s %v\n", x.name, err)
		}
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func say(what, format string, args ...any) {
	fmt.Printf("%-52s %s\n", what, fmt.Sprintf(format, args...))
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// home makes a fresh state.
func (b *bench) home() string {
	d, err := os.MkdirTemp(b.dir, "h")
	if err != nil {
		fatal(err)
	}
	return d
}

func (b *bench) command(home string, args ...string) *exec.Cmd {
	c := exec.Command(b.exe, args...)
	c.Env = append(os.Environ(), "DESTAJO_HOME="+home)
	return c
}

func (b *bench) run(home string, args ...string) (time.Duration, error) {
	c := b.command(home, args...)
	start := time.Now()
	out, err := c.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return time.Since(start), nil
}

func (b *bench) file(name, text string) string {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fatal(err)
	}
	return path
}

// start measures from the start of the process to the command running, less
// what a process of ours takes that does nothing.
func (b *bench) start() error {
	home := b.home()
	stamp := filepath.Join(b.dir, "stamp")
	path := b.file("start.yml", "name: start\nrun: date +%s%N > "+stamp+"\nresources: {gpus: 0}\n")
	if _, err := b.run(home, "run", path); err != nil {
		return err
	}
	var all, own, whole []time.Duration
	for range 30 {
		v, err := b.run(home, "version")
		if err != nil {
			return err
		}
		own = append(own, v)
		begin := time.Now()
		took, err := b.run(home, "run", path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(stamp)
		if err != nil {
			return err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return err
		}
		all = append(all, time.Unix(0, ns).Sub(begin))
		whole = append(whole, took)
	}
	say("submit to running, agent started anew, p50 of 30", "%.1f ms beyond the process's own %.1f ms; whole command %.1f ms", ms(median(all)-median(own)), ms(median(own)), ms(median(whole)))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// array measures an array of 1,000 tasks of true.
func (b *bench) array() error {
	path := b.file("array.yml", "name: array\nrun: \"true\"\narray: 1000\nresources: {gpus: 0}\n")
	var all []time.Duration
	for range 3 {
		took, err := b.run(b.home(), "run", path)
		if err != nil {
			return err
		}
		all = append(all, took)
	}
	m := median(all)
	say("array of 1,000 x true, synchronous=FULL, median of 3", "%.2f s = %.0f tasks/s", m.Seconds(), 1000/m.Seconds())
	return nil
}

// list measures the listing of 20,000 ended jobs.
func (b *bench) list() error {
	home := b.home()
	ctx := context.Background()
	s, err := store.Open(ctx, filepath.Join(home, "state.db"))
	if err != nil {
		return err
	}
	now := time.Now()
	first, err := s.NextJobs(ctx, 20_000)
	if err != nil {
		return err
	}
	c := &record.Changes{}
	for i := range 20_000 {
		c.Jobs = append(c.Jobs, &job.Job{ID: first + int64(i), Project: "default", Member: "owner", Name: fmt.Sprintf("job-%d", i%100), Kind: job.Task, State: job.Done,
			Text: "name: x\nrun: python train.py --epochs 3\nresources: {gpus: H100}\n", Submitted: now, Started: now, Ended: now, Attempts: 1,
			Estimate: &job.Estimate{Offer: "local/here", Currency: "USD"}})
	}
	if err := s.Apply(ctx, 0, c); err != nil {
		return err
	}
	_ = s.Close()
	for _, form := range []string{"table", "csv", "json"} {
		var all []time.Duration
		for range 7 {
			took, err := b.run(home, "jobs", "--all", "-o", form)
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		say("20,000 ended jobs listed as "+form+", median of 7", "%.0f ms", ms(median(all)))
	}
	return nil
}

// many measures 2,000 running jobs on the fake provider.
func (b *bench) many() error {
	home := b.home()
	folder := filepath.Join(home, "fake")
	err := fake.Write(folder, fake.Script{Agents: "simulated", Offers: []fake.Sale{{ID: "f", GPU: "H100-SXM", GPUs: 1, VCPUs: 8, MemoryGB: 100, PriceHour: 2e9}}})
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := store.Open(ctx, filepath.Join(home, "state.db"))
	if err != nil {
		return err
	}
	config, _ := json.Marshal(map[string]string{"folder": folder})
	err = s.Apply(ctx, 0, &record.Changes{Sources: []*record.Source{{ID: "fake", Project: "default", Backend: fake.Name, Config: string(config), Made: time.Now()}}})
	if err != nil {
		return err
	}
	defer s.Close()
	serve := b.command(home, "serve")
	serve.Env = append(serve.Env, "DESTAJO_LOG=debug")
	pipe, err := serve.StderrPipe()
	if err != nil {
		return err
	}
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() { _ = serve.Process.Kill(); _ = serve.Wait() }()
	passes := make(chan time.Duration, 1<<16)
	go func() {
		took := regexp.MustCompile(`msg=pass took=(\S+)`)
		for in := bufio.NewScanner(pipe); in.Scan(); {
			if m := took.FindStringSubmatch(in.Text()); m != nil {
				if d, err := time.ParseDuration(m[1]); err == nil {
					select {
					case passes <- d:
					default:
					}
				}
			}
		}
	}()
	time.Sleep(300 * time.Millisecond)
	path := b.file("many.yml", "name: many\nrun: sleep 600\narray: 2000\nresources: {gpus: H100}\n")
	begin := time.Now()
	if _, err := b.run(home, "run", "--detach", path); err != nil {
		return err
	}
	for time.Since(begin) < 2*time.Minute {
		jobs, err := s.Jobs(ctx, record.JobFilter{States: []job.State{job.Running}})
		if err != nil {
			return err
		}
		if len(jobs) == 2000 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	up := time.Since(begin)
	for len(passes) > 0 {
		<-passes
	}
	time.Sleep(10 * time.Second)
	var all []time.Duration
	for len(passes) > 0 {
		all = append(all, <-passes)
	}
	if len(all) == 0 {
		return errors.New("no pass was seen")
	}
	slices.Sort(all)
	say("2,000 jobs running on the fake provider", "after %.1f s; %d MB; a pass takes %.1f ms (p50), %.1f ms (p99)", up.Seconds(), rss(serve.Process.Pid)>>20, ms(all[len(all)/2]), ms(all[len(all)*99/100]))
	return nil
}

// rss is a process's memory in bytes.
func rss(pid int) int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// end measures how long after its end a job is known to have ended.
func (b *bench) end() error {
	home := b.home()
	stamp := filepath.Join(b.dir, "end")
	path := b.file("end.yml", "name: end\nrun: sleep 0.2; date +%s%N > "+stamp+"\nresources: {gpus: 0}\n")
	var all []time.Duration
	for range 10 {
		out, err := b.command(home, "run", "-o", "json", path).Output()
		if err != nil {
			return err
		}
		var x struct{ Ended time.Time }
		if err := json.Unmarshal(out, &x); err != nil {
			return err
		}
		data, err := os.ReadFile(stamp)
		if err != nil {
			return err
		}
		ns, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		all = append(all, x.Ended.Sub(time.Unix(0, ns)))
	}
	say("end of a job known after, p50 of 10", "%.1f ms", ms(median(all)))
	return nil
}

// agent measures an agent with one sleeping task.
func (b *bench) agent() error {
	home := b.home()
	serve := b.command(home, "serve")
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() { _ = serve.Process.Kill(); _ = serve.Wait() }()
	time.Sleep(300 * time.Millisecond)
	path := b.file("sleep.yml", "name: sleeping\nrun: sleep 600\nresources: {gpus: 0}\n")
	if _, err := b.run(home, "run", "-d", path); err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	out, err := exec.Command("pgrep", "-f", "agent run --home "+home).Output()
	if err != nil {
		return fmt.Errorf("no agent runs: %w", err)
	}
	pid, most := 0, int64(0)
	for _, f := range strings.Fields(string(out)) { // the shell that watches it is smaller
		if n, err := strconv.Atoi(f); err == nil && rss(n) > most {
			pid, most = n, rss(n)
		}
	}
	before := cpu(pid)
	serveBefore := cpu(serve.Process.Pid)
	time.Sleep(20 * time.Second)
	say("agent with a sleeping task, over 20 s", "%d MB, %.2f %% of a core; serve %d MB, %.2f %%", rss(pid)>>20, (cpu(pid)-before)/20*100, rss(serve.Process.Pid)>>20, (cpu(serve.Process.Pid)-serveBefore)/20*100)
	_, err = b.run(home, "stop", "sleeping")
	return err
}

// cpu is how many seconds of a core a process has used.
func cpu(pid int) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := strings.LastIndexByte(string(data), ')')
	if i < 0 {
		return 0
	}
	f := strings.Fields(string(data[i+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

// spooler measures task-spooler on the same tasks.
func (b *bench) spooler() error {
	tsp, err := exec.LookPath("tsp")
	if err != nil {
		return errors.New("task-spooler is not installed (apt-get install task-spooler)")
	}
	env := append(os.Environ(), "TMPDIR="+b.dir, "TS_SOCKET="+filepath.Join(b.dir, "tsp.sock"))
	run := func(args ...string) error {
		c := exec.Command(tsp, args...)
		c.Env = env
		return c.Run()
	}
	if err := run("-S", strconv.Itoa(runtime.NumCPU())); err != nil {
		return err
	}
	defer func() { _ = run("-K") }()
	const n = 1000
	begin := time.Now()
	for range n {
		if err := run("-n", "true"); err != nil {
			return err
		}
	}
	c := exec.Command(tsp, "-w")
	c.Env = env
	_ = c.Run()
	took := time.Since(begin)
	say("task-spooler, 1,000 x true", "%.2f s = %.0f tasks/s", took.Seconds(), n/took.Seconds())
	return nil
}

// slurm measures a tuned Slurm on the same tasks.
func (b *bench) slurm() error {
	for _, name := range []string{"slurmctld", "slurmd", "munged", "sbatch"} {
		if _, err := exec.LookPath(name); err != nil {
			return errors.New("Slurm is not installed (apt-get install slurmctld slurmd slurm-client munge)")
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("Slurm is started as root only")
	}
	d := filepath.Join(b.dir, "slurm")
	script := b.file("slurm.sh", slurmScript)
	up := exec.Command("bash", script, d, strconv.Itoa(runtime.NumCPU()*32))
	up.Stdout, up.Stderr = os.Stderr, os.Stderr
	if err := up.Run(); err != nil {
		return fmt.Errorf("starting Slurm: %w", err)
	}
	defer func() {
		for _, f := range []string{"run/d.pid", "run/ctld.pid", "munge/pid"} {
			if data, err := os.ReadFile(filepath.Join(d, f)); err == nil {
				if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
					_ = syscall.Kill(pid, syscall.SIGTERM)
				}
			}
		}
	}()
	env := append(os.Environ(), "SLURM_CONF="+filepath.Join(d, "slurm.conf"))
	const n = 500
	begin := time.Now()
	c := exec.Command("sbatch", "-o", "/dev/null", "--array", fmt.Sprintf("1-%d", n), "--wrap", "true")
	c.Env, c.Dir = env, d
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("sbatch: %w: %s", err, out)
	}
	for time.Since(begin) < 5*time.Minute {
		q := exec.Command("squeue", "-h", "-r")
		q.Env = env
		out, err := q.Output()
		if err == nil && len(strings.TrimSpace(string(out))) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	took := time.Since(begin)
	say("Slurm, tuned, an array of 500 x true", "%.2f s = %.0f tasks/s", took.Seconds(), n/took.Seconds())
	return nil
}

// slurmScript starts munge, the controller and one node on loopback, tuned for
// throughput: no scheduling interval, as many slots as are asked for.
const slurmScript = `set -e
D=$1; SLOTS=$2; H=$(hostname -s); mkdir -p $D/state $D/spool $D/log $D/run; chmod 755 $(dirname $D) $D
install -d -o munge -g munge -m 0755 $D/munge
dd if=/dev/urandom of=$D/munge/key bs=1 count=1024 status=none; chown munge: $D/munge/key; chmod 400 $D/munge/key
su -s /bin/sh munge -c "munged --force --key-file=$D/munge/key --socket=$D/munge/sock --pid-file=$D/munge/pid --log-file=$D/munge/log --seed-file=$D/munge/seed"
cat > $D/slurm.conf <<E
ClusterName=test
SlurmctldHost=$H(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/sock
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldPidFile=$D/run/ctld.pid
SlurmdPidFile=$D/run/d.pid
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool
SlurmctldLogFile=$D/log/ctld.log
SlurmdLogFile=$D/log/d.log
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,default_queue_depth=1000,sched_max_job_start=0,bf_interval=1,max_rpc_cnt=0
SlurmdParameters=config_overrides
MaxJobCount=20000
MaxArraySize=2000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
NodeName=$H NodeAddr=127.0.0.1 CPUs=$SLOTS RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=$H Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
E
export SLURM_CONF=$D/slurm.conf
slurmctld -c -f $SLURM_CONF; slurmd -c -f $SLURM_CONF
for i in $(seq 100); do sinfo -h -o %T 2>/dev/null | grep -q idle && exit 0; sleep 0.1; done
sinfo; exit 1
`
