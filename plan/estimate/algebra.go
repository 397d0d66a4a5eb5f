package estimate

import (
	"math"
	"runtime"
	"sync"
)

// Dense symmetric matrices for the fit, by rows. A fit inverts one matrix per
// regime; every kind of cross-validation then follows from that inverse.

// cholesky replaces the lower half of a positive definite matrix by its
// factor. It reports false when the matrix is not positive definite.
func cholesky(a [][]float64) bool {
	for i := range a {
		for j := 0; j < i; j++ {
			a[i][j] = (a[i][j] - dot(a[i][:j], a[j][:j])) / a[j][j]
		}
		d := a[i][i] - dot(a[i][:i], a[i][:i])
		if d <= 0 || math.IsNaN(d) {
			return false
		}
		a[i][i] = math.Sqrt(d)
	}
	return true
}

// solve solves with a factor from cholesky, in place.
func solve(l [][]float64, x []float64) {
	for i := range l {
		x[i] = (x[i] - dot(l[i][:i], x[:i])) / l[i][i]
	}
	for i := len(l) - 1; i >= 0; i-- {
		x[i] /= l[i][i]
		axpy(-x[i], l[i][:i], x[:i])
	}
}

// inverse replaces a positive definite matrix by its inverse.
func inverse(a [][]float64) bool {
	if !cholesky(a) {
		return false
	}
	n := len(a)
	m := square(n) // inverse of the factor, lower
	for i := range n {
		row := m[i][:i+1]
		for k := range i {
			axpy(-a[i][k], m[k][:k+1], row[:k+1])
		}
		for k := range i {
			row[k] /= a[i][i]
		}
		row[i] = 1 / a[i][i]
	}
	// The columns of the inverse are split over the processors.
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for p := w; p < n; p += workers {
				out := a[p][:p+1]
				clear(out)
				for i := p; i < n; i++ {
					axpy(m[i][p], m[i][:p+1], out)
				}
			}
		})
	}
	wait.Wait()
	for i := range n {
		for j := range i {
			a[j][i] = a[i][j]
		}
	}
	return true
}

func square(n int) [][]float64 {
	all := make([]float64, n*n)
	a := make([][]float64, n)
	for i := range a {
		a[i] = all[i*n : (i+1)*n]
	}
	return a
}

func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+3 < len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

// axpy adds k times a to b.
func axpy(k float64, a, b []float64) {
	if k == 0 {
		return
	}
	b = b[:len(a)]
	i := 0
	for ; i+3 < len(a); i += 4 {
		b[i] += k * a[i]
		b[i+1] += k * a[i+1]
		b[i+2] += k * a[i+2]
		b[i+3] += k * a[i+3]
	}
	for ; i < len(a); i++ {
		b[i] += k * a[i]
	}
}
