package ssh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

// Host is one machine that is reached over SSH: the config of a source, and an
// entry of a hosts file. What is empty is taken from ~/.ssh/config, else as ssh
// takes it.
type Host struct {
	Host          string            `json:"host"` // a name, an address, or a Host of ~/.ssh/config
	User          string            `json:"user,omitempty"`
	Port          int               `json:"port,omitempty"`
	IdentityFiles []string          `json:"identity_files,omitempty"`
	AcceptKey     string            `json:"accept_key,omitempty"`  // fingerprint SHA256:... of a host key that is not in known_hosts yet
	SSHCommand    string            `json:"ssh_command,omitempty"` // run instead of our own client, with the remote command after it
	Home          string            `json:"home,omitempty"`        // on the host, for agents and their files; empty: ~/.destajo
	Name          string            `json:"name,omitempty"`        // as offers show it; empty: Host
	Labels        map[string]string `json:"labels,omitempty"`
	Country       string            `json:"country,omitempty"`
	PriceHour     *money.Amount     `json:"price_hour,omitempty"` // USD, stated by the owner; nil: derived
	Seen          *machine.Host     `json:"seen,omitempty"`       // what it had when it was looked at
	Removed       bool              `json:"removed,omitempty"`    // nothing new starts there; what is there is still ended
}

// ID is how the host is named in handles: an ssh URL.
func (h *Host) ID() string {
	id := h.Host
	if h.Port != 0 {
		id = net.JoinHostPort(h.Host, strconv.Itoa(h.Port))
	} else if strings.Contains(id, ":") {
		id = "[" + id + "]"
	}
	if h.User != "" {
		id = h.User + "@" + id
	}
	return "ssh://" + id
}

func (h *Host) name() string {
	if h.Name != "" {
		return h.Name
	}
	return h.Host
}

func (h *Host) home() string {
	if h.Home != "" {
		return strings.TrimSuffix(h.Home, "/")
	}
	return "~/.destajo"
}

// ParseURL reads ssh://[user@]host[:port].
func ParseURL(text string) (Host, error) {
	u, err := url.Parse(text)
	bad := func(why string) (Host, error) {
		return Host{}, fault.New(fault.Invalid, "%q: %s", text, why).Hint("write ssh://user@host or ssh://user@host:port; host may be a name of ~/.ssh/config")
	}
	switch {
	case err != nil:
		return bad("it is no URL")
	case u.Scheme != "ssh":
		return bad("it does not begin with ssh://")
	case u.Hostname() == "":
		return bad("it names no host")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return bad("there is something after the host")
	}
	h := Host{Host: u.Hostname()}
	if u.User != nil {
		if _, has := u.User.Password(); has {
			text = u.Redacted()
			return bad("a password does not belong into an address; use a key")
		}
		h.User = u.User.Username()
	}
	if p := u.Port(); p != "" {
		if h.Port, err = strconv.Atoi(p); err != nil || h.Port < 1 || h.Port > 65535 {
			return bad("the port is none")
		}
	}
	return h, h.check()
}

// ParseConfig reads the config of a source.
func ParseConfig(text string) (Host, error) {
	var h Host
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return Host{}, fault.Wrap(fault.Invalid, err, "the configuration of an SSH host")
	}
	return h, h.check()
}

// check refuses what would become an option of a command, or part of a script.
func (h *Host) check() error {
	bad := func(what, value string) error {
		return fault.New(fault.Invalid, "%q is no %s of an SSH host", value, what)
	}
	switch {
	case h.Host == "" || strings.HasPrefix(h.Host, "-") || strings.ContainsAny(h.Host, " \t\r\n'\"\\#@/"):
		return bad("name", h.Host)
	case strings.HasPrefix(h.User, "-") || strings.ContainsAny(h.User, " \t\r\n'\"\\@#/:"):
		return bad("user", h.User)
	case h.Port < 0 || h.Port > 65535:
		return bad("port", strconv.Itoa(h.Port))
	case strings.ContainsAny(h.Home, "\r\n'\""):
		return bad("home", h.Home)
	case h.AcceptKey != "" && !strings.HasPrefix(h.AcceptKey, "SHA256:"):
		return fault.New(fault.Invalid, "%q is no fingerprint of a host key", h.AcceptKey).Hint("write it as ssh-keygen -lf prints it: SHA256:...")
	case h.PriceHour != nil && *h.PriceHour < 0:
		return bad("price", h.PriceHour.String())
	}
	return nil
}

// ReadHosts reads a hosts file: a line for each host with its ssh URL, or the
// bare name of one of ~/.ssh/config, and then settings such as price=0.40
// name=box country=ES identity=~/.ssh/lab home=/data/destajo label.rack=a3.
// What follows a # is a comment.
func ReadHosts(file string, data []byte) ([]Host, error) {
	var out []Host
	for i, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if !strings.Contains(f[0], "://") {
			f[0] = "ssh://" + f[0]
		}
		h, err := ParseURL(f[0])
		if err != nil {
			return nil, fault.Wrap(fault.KindOf(err), err, "a host").At(file, i+1, 0).Hint("%s", fault.HintOf(err))
		}
		for _, setting := range f[1:] {
			key, value, _ := strings.Cut(setting, "=")
			label, isLabel := strings.CutPrefix(key, "label.")
			switch {
			case value == "":
				err = fault.New(fault.Invalid, "%q has no value", key)
			case isLabel && label != "":
				if h.Labels == nil {
					h.Labels = map[string]string{}
				}
				h.Labels[label] = value
			case key == "price":
				var p money.Amount
				if p, err = money.Parse(value); err == nil {
					h.PriceHour = &p
				}
			case key == "name":
				h.Name = value
			case key == "country":
				h.Country = value
			case key == "identity":
				h.IdentityFiles = append(h.IdentityFiles, value)
			case key == "home":
				h.Home = value
			case key == "accept-key":
				h.AcceptKey = value
			default:
				err = fault.New(fault.Invalid, "a host has no %q", key).Hint("settings are price, name, country, identity, home, accept-key and label.NAME")
			}
			if err == nil {
				err = h.check()
			}
			if err != nil {
				f := fault.Wrap(fault.Invalid, err, "%s", h.Host).At(file, i+1, 0)
				if hint := fault.HintOf(err); hint != "" {
					f = f.Hint("%s", hint)
				}
				return nil, f
			}
		}
		if slices.ContainsFunc(out, func(o Host) bool { return o.ID() == h.ID() }) {
			return nil, fault.New(fault.Invalid, "%s stands there twice", h.ID()).At(file, i+1, 0)
		}
		out = append(out, h)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "no host").At(file, 0, 0).Hint("write a line such as ssh://me@box price=0.40 for each host")
	}
	return out, nil
}

// ReadNodePools reads SkyPilot's ~/.sky/ssh_node_pools.yaml. Every field that
// cannot be honoured is named in ignored, none is passed over silently.
func ReadNodePools(file string, data []byte) (hosts []Host, ignored []string, err error) {
	var pools yaml.MapSlice
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.UseOrderedMap()).Decode(&pools); err != nil {
		return nil, nil, fault.Wrap(fault.Invalid, err, "the file is no YAML of pools").At(file, 0, 0)
	}
	for _, pool := range pools {
		name := fmt.Sprint(pool.Key)
		fields, ok := pool.Value.(yaml.MapSlice)
		if !ok {
			return nil, nil, fault.New(fault.Invalid, "the pool %s has no hosts", name).At(file, 0, 0)
		}
		var common Host
		var list []any
		for _, f := range fields {
			key := fmt.Sprint(f.Key)
			if key == "hosts" {
				list, _ = f.Value.([]any)
				continue
			}
			if !common.set(key, f.Value) {
				ignored = append(ignored, name+"."+key+why(key))
			}
		}
		if len(list) == 0 {
			return nil, nil, fault.New(fault.Invalid, "the pool %s has no hosts", name).At(file, 0, 0)
		}
		for i, entry := range list {
			h := common
			h.Labels = map[string]string{"pool": name}
			switch e := entry.(type) {
			case string:
				h.set("ip", e)
			case yaml.MapSlice:
				for _, f := range e {
					key := fmt.Sprint(f.Key)
					if !h.set(key, f.Value) {
						ignored = append(ignored, fmt.Sprintf("%s.hosts[%d].%s%s", name, i, key, why(key)))
					}
				}
			}
			if err := h.check(); err != nil {
				return nil, nil, fault.Wrap(fault.Invalid, err, "the pool %s, host %d", name, i+1).At(file, 0, 0)
			}
			if !slices.ContainsFunc(hosts, func(o Host) bool { return o.ID() == h.ID() }) {
				hosts = append(hosts, h)
			}
		}
	}
	if len(hosts) == 0 {
		return nil, nil, fault.New(fault.Invalid, "no pool").At(file, 0, 0)
	}
	return hosts, ignored, nil
}

// set takes a field of SkyPilot's; false when there is no such thing here.
func (h *Host) set(key string, value any) bool {
	text, isText := value.(string)
	switch {
	case key == "ip" && isText:
		h.Host = text
	case key == "user" && isText:
		h.User = text
	case key == "identity_file" && isText:
		h.IdentityFiles = []string{text}
	case key == "use_ssh_config":
		// ~/.ssh/config is always read.
	case key == "port":
		n, err := strconv.Atoi(fmt.Sprint(value))
		h.Port = n
		return err == nil
	default:
		return false
	}
	return true
}

func why(key string) string {
	if key == "password" {
		return ": nothing is installed with sudo, and logging in needs a key"
	}
	return ": not known here"
}
