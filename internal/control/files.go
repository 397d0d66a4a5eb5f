package control

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// Files keeps what is too large for rows, in a folder: logs by task, bundles of
// workdirs by the hash of their bytes, outputs and checkpoints by job.
type Files struct{ Dir string }

// Log is the file of a task's log. Its size says how much of it is here.
func (f Files) Log(job int64, attempt string, rank int) string {
	return filepath.Join(f.Dir, "logs", strconv.FormatInt(job, 10), machine.TaskID(attempt, rank)+".log")
}

// Outputs is the tar.gz of what a job brought back.
func (f Files) Outputs(job int64, rank int) string {
	return filepath.Join(f.Dir, "outputs", strconv.FormatInt(job, 10)+"."+strconv.Itoa(rank)+".tar.gz")
}

// Checkpoint is the tar.gz of a job's newest checkpoint.
func (f Files) Checkpoint(job int64, rank int) string {
	return filepath.Join(f.Dir, "checkpoints", strconv.FormatInt(job, 10)+"."+strconv.Itoa(rank)+".tar.gz")
}

// Blob is a stored bundle.
func (f Files) Blob(name string) string { return filepath.Join(f.Dir, "blobs", name) }

// PutBlob stores bytes under the hash of them, which it gives.
func (f Files) PutBlob(r io.Reader) (string, error) {
	h := sha256.New()
	path, err := f.write(filepath.Join(f.Dir, "blobs"), io.TeeReader(r, h))
	if err != nil {
		return "", err
	}
	name := hex.EncodeToString(h.Sum(nil))
	if err := os.Rename(path, f.Blob(name)); err != nil {
		return "", disk(err, "storing files")
	}
	return name, nil
}

// Replace writes a file whole or not at all. Whoever asks must still be the one
// who may when it is all here: it may have taken long.
func (f Files) Replace(path string, r io.Reader, may func() bool) error {
	temporary, err := f.write(filepath.Dir(path), r)
	if err != nil {
		return err
	}
	if !may() {
		_ = os.Remove(temporary)
		return fault.New(fault.Conflict, "another process looks after %s by now", path)
	}
	if err := os.Rename(temporary, path); err != nil {
		return disk(err, "writing %s", path)
	}
	return nil
}

func (f Files) write(dir string, r io.Reader) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", disk(err, "making %s", dir)
	}
	file, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", disk(err, "writing to %s", dir)
	}
	_, err = io.Copy(file, r)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", disk(err, "writing to %s", dir)
	}
	return file.Name(), nil
}

// Hash gives the name under which a file would be stored as a blob.
func (f Files) Hash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Append writes the part of a log that begins at an offset. What is there
// already is written over with the same bytes.
func (f Files) Append(path string, offset int64, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		}
	}
	if err != nil {
		return disk(err, "writing the log %s", path)
	}
	_, err = file.WriteAt(data, offset)
	if err = errors.Join(err, file.Close()); err != nil {
		return disk(err, "writing the log %s", path)
	}
	return nil
}

// Size is how much of a file is here; 0 when it is not.
func (f Files) Size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func disk(err error, format string, args ...any) error {
	return fault.Wrap(fault.Internal, err, format, args...).Hint("is the disk of DESTAJO_HOME full, or not yours to write? `df` and `ls -l` tell")
}
