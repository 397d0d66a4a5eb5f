package convert

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// group is an object of a format: a file in which it stands, with %s for what
// is in it, and its keys with a value that says something.
type group struct {
	format, file string
	keys         map[string]string
	table        func() []field // that reads it; nil: it is part of another
}

// groups are all keys that the formats have, as their own schemas list them.
func groups() []group {
	sky := func() *sky { return &sky{reader: &reader{}, d: &draft{}} }
	stack := func() *stack { return &stack{reader: &reader{}, d: &draft{}} }
	candidate := map[string]string{
		"infra": "aws/us-east-1", "cloud": "aws", "region": "us-east-1", "zone": "us-east-1a", "accelerators": "H100:8", "accelerator_args": "{runtime_version: a, tpu_name: b, tpu_vm: true, gcp_queued_resource: true}",
		"cpus": "4+", "memory": "32+", "instance_type": "p3.8xlarge", "use_spot": "true", "spot_recovery": "FAILOVER", "job_recovery": "{strategy: FAILOVER}", "max_hourly_cost": "2.5",
		"disk_size": "300", "ephemeral_storage": "100GB", "disk_tier": "best", "network_tier": "best", "local_disk": "'1000+'", "image_id": "docker:ubuntu", "ports": "8080", "labels": "{a: b}",
		"autostop": "10", "priority": "7", "priority_class": "high", "volumes": "[{name: v, path: /v}]",
		"_docker_login_config": "{username: a, password: b, server: c}", "_is_image_managed": "true", "_requires_fuse": "true", "_cluster_config_overrides": "{a: b}", "_no_missing_accel_warnings": "true",
	}
	service := map[string]string{
		"readiness_probe": "/health", "replica_policy": "{min_replicas: 2}", "replicas": "2", "workers": "2", "ports": "9000", "load_balancing_policy": "round_robin",
		"load_balancer": "{stream_timeout_seconds: 5}", "tls": "{keyfile: a, certfile: b}", "pool": "{workers: 1}",
	}
	common := map[string]string{
		"name": "other", "image": "ubuntu", "user": "root", "privileged": "true", "entrypoint": "bash -c", "working_dir": "/app", "home_dir": "/root", "registry_auth": "{username: a, password: b}",
		"python": "3.12", "nvcc": "true", "docker": "true", "single_branch": "true", "env": "[A=b]", "shell": "/usr/bin/zsh", "resources": "{cpu: 4..}", "priority": "7", "volumes": "['v:/v']",
		"repos": "[.]", "files": "[a.py]", "setup": "[a]",
		"backends": "[aws]", "regions": "[us-east-1]", "availability_zones": "[a]", "instance_types": "[p3]", "reservation": "cr-1", "spot_policy": "auto", "retry": "true", "retry_policy": "{retry: true, duration: 1h}",
		"max_duration": "2h", "stop_duration": "5m", "max_price": "2.5", "creation_policy": "reuse", "idle_duration": "5m", "termination_policy": "dont-destroy", "termination_idle_time": "5m",
		"utilization_policy": "{min_gpu_utilization: 20, time_window: 30m}", "startup_order": "master-first", "stop_criteria": "master-done", "schedule": "{cron: '0 0 * * *'}", "fleets": "[a]", "instances": "[a]", "backend_options": "[{type: runpod}]", "pool_name": "a",
		"instance_name": "a", "tags": "{a: b}",
	}
	with := func(more map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range common {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	var number int
	var text string
	var parallel bool
	typed := func(kind string) func() []field {
		return func() []field {
			return slices.DeleteFunc(stack().fields(kind), func(f field) bool { return f.key == "type" }) // says which format it is
		}
	}
	return []group{
		{"skypilot", "run: a\n%s\n", map[string]string{
			"name": "n", "workdir": ".", "num_nodes": "2", "resources": "{cpus: 4+}", "envs": "{A: b}", "secrets": "{A: b}", "managed_secrets": "[A]", "file_mounts": "{/a: ./a}", "storage_mounts": "{/a: {source: ./a}}",
			"volumes": "{/a: v}", "volume_mounts": "[{path: /a, volume_name: v}]", "setup": "b", "service": "{readiness_probe: /}", "pool": "{workers: 2}", "config": "{docker: {run_options: x}}", "experimental": "{config_overrides: {a: b}}",
			"inputs": "{'s3://a': 2}", "outputs": "{'s3://a': 2}", "event_callback": "x", "api_server_access": "false", "file_mounts_mapping": "{a: b}", "_metadata": "{a: b}",
		}, func() []field {
			var a, b, c value
			return slices.DeleteFunc(sky().fields(&a, &b, &c), func(f field) bool { return f.key == "run" })
		}},
		{"skypilot", "%s\n", map[string]string{"run": "echo"}, nil},
		{"skypilot", "run: a\nresources: {%s}\n", candidate, func() []field { return sky().candidateFields(&candidateZero) }},
		{"skypilot", "run: a\nresources: {any_of: [{use_spot: false, %s}]}\n", without(candidate, "use_spot"), nil},
		{"skypilot", "run: a\nresources: {ordered: [{use_spot: false, %s}]}\n", without(candidate, "use_spot"), nil},
		{"skypilot", "run: a\nresources: {%s}\n", map[string]string{"any_of": "[{accelerators: H100}]", "ordered": "[{accelerators: H100}]"}, nil},
		{"skypilot", "resources: {autostop: {idle_minutes: 20, %s}}\n", map[string]string{"down": "true", "wait_for": "jobs", "hook": "x", "hook_timeout": "5"}, nil},
		{"skypilot", "resources: {autostop: {%s}}\n", map[string]string{"idle_minutes": "20"}, nil},
		{"skypilot", "run: a\nresources: {job_recovery: {%s}}\n", map[string]string{"strategy": "FAILOVER", "max_restarts_on_errors": "2", "recover_on_exit_codes": "[3]"}, nil},
		{"skypilot", "run: a\nresources: {accelerator_args: {%s}}\n", map[string]string{"runtime_version": "a", "tpu_name": "b", "tpu_vm": "true", "gcp_queued_resource": "true"}, nil},
		{"skypilot", "run: a\nresources: {ports: 8080}\nservice: {%s}\n", service, func() []field { return sky().serviceFields(&health{}, &number) }},
		{"skypilot", "run: a\nresources: {ports: 8080}\nservice: {readiness_probe: {%s}}\n", map[string]string{"path": "/h", "initial_delay_seconds": "5", "timeout_seconds": "5",
			"endpoint_probe_interval_seconds": "5", "consecutive_failure_threshold_timeout": "5", "post_data": "{a: b}", "headers": "{a: b}"}, nil},
		{"skypilot", "run: a\nresources: {ports: 8080}\nservice: {replica_policy: {%s}}\n", map[string]string{"min_replicas": "2", "max_replicas": "3", "num_overprovision": "1", "target_qps_per_replica": "2",
			"dynamic_ondemand_fallback": "true", "base_ondemand_fallback_replicas": "1", "spot_placer": "x", "upscale_delay_seconds": "3", "downscale_delay_seconds": "3"}, nil},
		{"skypilot", "run: a\nfile_mounts: {/a: {source: ./a, mode: COPY, %s}}\n", map[string]string{"name": "n", "store": "volume", "persistent": "true", "mount_options": "x", "type": "DATASET_RO", "config": "{disk_size: 3}",
			"_is_sky_managed": "true", "_bucket_sub_path": "a", "_force_delete": "true"}, nil},
		{"skypilot", "run: a\nfile_mounts: {/a: {%s}}\n", map[string]string{"source": "./a"}, nil},
		{"skypilot", "run: a\nfile_mounts: {/a: {source: ./a, %s}}\n", map[string]string{"mode": "COPY"}, nil},
		{"skypilot", "run: a\nworkdir: {url: 'https://a/b', %s}\n", map[string]string{"ref": "v1"}, nil},
		{"skypilot", "run: a\nconfig: {%s}\n", all(configKeys, "{a: b}"), nil},
		{"skypilot", "name: p\n%s\n---\nrun: a\n---\nrun: b\n", map[string]string{"execution": "parallel", "primary_tasks": "[a]", "termination_delay": "5s"}, nil},
		{"skypilot", "%s\nexecution: serial\n---\nrun: a\n---\nrun: b\n", map[string]string{"name": "p"}, func() []field {
			return slices.DeleteFunc((&reader{}).headerFields(&text, &parallel), func(f field) bool { return f.key != "name" })
		}},
		{"dstack", "type: task\ncommands: [a]\n%s\n", with(map[string]string{"ports": "[80]", "nodes": "2"}), func() []field {
			return slices.DeleteFunc(typed("task")(), func(f field) bool { return f.key == "commands" })
		}},
		{"dstack", "type: task\nimage: ubuntu\n%s\n", map[string]string{"commands": "[a]"}, nil},
		{"dstack", "type: dev-environment\n%s\n", with(map[string]string{"ports": "[80]", "ide": "vscode", "version": "1", "init": "[a]", "inactivity_duration": "2h"}), typed("dev-environment")},
		{"dstack", "type: service\ncommands: [a]\nport: 80\n%s\n", with(map[string]string{"gateway": "a", "strip_prefix": "false", "https": "false", "auth": "false", "rate_limits": "[{rps: 1}]", "router": "{type: sglang}",
			"model": "m", "scaling": "{metric: rps, target: 1}", "replicas": "2", "probes": "[{type: http, url: /x}]"}), func() []field {
			return slices.DeleteFunc(typed("service")(), func(f field) bool { return f.key == "commands" || f.key == "port" })
		}},
		{"dstack", "type: service\ncommands: [a]\nport: 80\nprobes: [{type: http, %s}]\n", map[string]string{"url": "/x", "method": "post", "headers": "[{name: a, value: b}]", "body": "x", "timeout": "5", "interval": "5", "ready_after": "2", "until_ready": "true"}, nil},
		{"dstack", "type: task\ncommands: [a]\nresources: {%s}\n", map[string]string{"cpu": "4..", "memory": "8GB..", "shm_size": "1GB", "gpu": "H100", "disk": "{size: 5GB..}"}, nil},
		{"dstack", "type: task\ncommands: [a]\nresources: {gpu: {%s}}\n", map[string]string{"vendor": "amd", "name": "H100", "count": "2", "memory": "24GB..", "total_memory": "24GB..", "compute_capability": "8.0"}, nil},
		{"dstack", "type: task\ncommands: [a]\nresources: {cpu: {count: 4.., %s}}\n", map[string]string{"arch": "arm"}, nil},
		{"dstack", "type: task\ncommands: [a]\nresources: {cpu: {arch: x86, %s}}\n", map[string]string{"count": "4.."}, nil},
		{"dstack", "type: task\ncommands: [a]\nretry: {%s}\n", map[string]string{"on_events": "[interruption]", "duration": "4h"}, nil},
		{"dstack", "type: task\ncommands: [a]\nrepos: [{url: 'https://a/b', %s}]\n", map[string]string{"branch": "b", "hash": "c", "path": "d", "if_exists": "skip"}, nil},
		{"dstack", "type: task\ncommands: [a]\nvolumes: [{instance_path: /a, path: /b, %s}]\n", map[string]string{"optional": "true"}, nil},
	}
}

var candidateZero candidate

func without(m map[string]string, key string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func all(keys []string, value string) map[string]string {
	out := map[string]string{}
	for _, k := range keys {
		out[k] = value
	}
	return out
}

// TestEveryKey proves that each key of each format changes the job, or is told.
func TestEveryKey(t *testing.T) {
	t.Parallel()
	body := func(results []Result) string {
		var b strings.Builder
		for _, r := range results {
			for line := range strings.Lines(string(r.YAML)) {
				if !strings.HasPrefix(line, "#") {
					b.WriteString(line)
				}
			}
			for _, n := range r.Notes { // of other keys: what they say may depend on this one
				fmt.Fprintln(&b, n.Text, n.Fatal)
			}
		}
		return b.String()
	}
	tested := 0
	for _, g := range groups() {
		plain, _ := convertFile(g.format, "f.yaml", []byte(fmt.Sprintf(g.file, "")))
		for key, value := range g.keys {
			file := fmt.Sprintf(g.file, key+": "+value)
			results, err := convertFile(g.format, "f.yaml", []byte(file))
			if err != nil {
				t.Errorf("%s: %v\n%s", key, err, file)
				continue
			}
			told := false
			for _, r := range results {
				told = told || slices.ContainsFunc(r.Notes, func(n Note) bool {
					return n.Line > 0 && n.Column > 0 && n.Text != "" && (strings.Contains("."+n.Field+".", "."+key+".") || strings.Contains("."+n.Field, "."+key+"["))
				})
			}
			if !told && body(results) == body(plain) {
				t.Errorf("%s of %q is ignored in silence", key, g.file)
			}
			tested++
		}
		if g.table == nil {
			continue
		}
		var known, listed []string
		for _, f := range g.table() {
			known = append(known, f.key)
		}
		for key := range g.keys {
			listed = append(listed, key)
		}
		slices.Sort(known)
		slices.Sort(listed)
		if d := cmp.Diff(slices.Compact(known), listed); d != "" {
			t.Errorf("keys that are read and keys that are tested in %q differ: %s", g.file, d)
		}
	}
	t.Logf("%d keys", tested)
}
