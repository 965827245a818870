// Command mutants changes packages in small ways, one at a time, and prints the changes that the packages' own tests
// pass with: each is a mistake that no test would notice, or no mistake at all.
//
//	go run ./scripts/mutants -seed 1 -count 10 ./quantize/rtn ./quantize/gptq
//
// Files are changed in an overlay, and stay as they are. The same seed draws the same changes of the same sources. What
// does not compile is counted, and another is drawn in its place.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	seed := flag.Uint64("seed", 1, "that mutants are drawn by")
	count := flag.Int("count", 10, "mutants of each package")
	limit := flag.Duration("timeout", time.Minute, "of the tests of a mutant, which is killed when it is over")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *seed, *count, *limit, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// unit is a package as go list prints it.
type unit struct {
	ImportPath, Dir string
	GoFiles         []string
}

// run tries mutants of one package after the other, and writes those that live.
func run(ctx context.Context, w io.Writer, seed uint64, count int, limit time.Duration, patterns []string) error {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,GoFiles"}, patterns...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var counts [broken + 1]int
	for units := json.NewDecoder(bytes.NewReader(out)); ; {
		var u unit
		if err := units.Decode(&u); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if err := u.try(ctx, w, work, rand.New(rand.NewPCG(seed, 0)), count, limit, &counts); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "killed %d, lived %d, did not compile %d\n", counts[killed], counts[lived], counts[broken])
	return err
}

// try tests mutants of a package until count of them have compiled or there are no more.
func (u *unit) try(ctx context.Context, w io.Writer, work string, draw *rand.Rand, count int, limit time.Duration, counts *[broken + 1]int) error {
	if got, text, err := u.test(ctx, limit); err != nil {
		return err
	} else if got != lived {
		return fmt.Errorf("%s fails as it is:\n%s", u.ImportPath, text)
	}
	var all []mutant
	for _, name := range u.GoFiles {
		path := filepath.Join(u.Dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		of, err := mutants(path, source)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	for _, i := range draw.Perm(len(all)) {
		if count == 0 {
			break
		}
		overlay, err := all[i].overlay(work)
		if err != nil {
			return err
		}
		got, _, err := u.test(ctx, limit, "-overlay", overlay)
		if err != nil {
			return err
		}
		counts[got]++
		if got == lived {
			fmt.Fprintln(w, all[i])
		}
		if got != broken {
			count--
		}
	}
	return nil
}

// fate is what becomes of a mutant.
type fate int

const (
	killed fate = iota
	lived
	broken // does not compile
)

// test runs the package's own tests, and returns what they print. Vet is left out: it is no test.
func (u *unit) test(ctx context.Context, limit time.Duration, flags ...string) (fate, string, error) {
	args := append([]string{"test", "-short", "-count=1", "-failfast", "-vet=off", "-timeout", limit.String()}, flags...)
	out, err := exec.CommandContext(ctx, "go", append(args, u.ImportPath)...).CombinedOutput()
	text := string(out)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, "", ctx.Err()
	case err == nil:
		return lived, text, nil
	case !errors.As(err, &exit):
		return 0, "", err
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return broken, text, nil
	}
	return killed, text, nil
}

// mutant is a change of a file.
type mutant struct {
	at       token.Position
	old, new string
	source   []byte // of the file as it is
}

// String returns where the change is, what was there and what takes its place.
func (m mutant) String() string {
	path := m.at.Filename
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil {
			path = rel
		}
	}
	line := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	return fmt.Sprintf("%s:%d:%d: %s → %s", path, m.at.Line, m.at.Column, line(m.old), cmp.Or(line(m.new), "nothing"))
}

// overlay writes the changed file and returns what go test takes to read it.
func (m mutant) overlay(work string) (string, error) {
	file, overlay := filepath.Join(work, "mutant.go"), filepath.Join(work, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{m.at.Filename: file}})
	if err != nil {
		return "", err
	}
	text := string(m.source[:m.at.Offset]) + m.new + string(m.source[m.at.Offset+len(m.old):])
	return overlay, errors.Join(os.WriteFile(file, []byte(text), 0o644), os.WriteFile(overlay, data, 0o644))
}

// others are the operators that are taken in the place of one.
func others() map[token.Token]token.Token {
	return map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.LAND: token.LOR, token.LOR: token.LAND,
	}
}

// mutants returns all changes of a file, none of one that is generated: other operators, numbers one more and one less,
// conditions negated, calls and assignments left out, and errors that are not returned.
func mutants(path string, source []byte) (all []mutant, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	ops := others()
	text := func(from, to token.Pos) string {
		return string(source[fset.Position(from).Offset:fset.Position(to).Offset])
	}
	change := func(from, to token.Pos, with string) {
		all = append(all, mutant{fset.Position(from), text(from, to), with, source})
	}
	var visit func(n ast.Node, failing bool) // in a function that returns an error last, if failing
	visit = func(root ast.Node, failing bool) {
		ast.Inspect(root, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Body != nil {
					visit(n.Body, fails(n.Type))
				}
				return false
			case *ast.FuncLit:
				visit(n.Body, fails(n.Type))
				return false
			case *ast.BinaryExpr:
				if op, ok := ops[n.Op]; ok {
					change(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op.String())
				}
			case *ast.BasicLit:
				if i, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
					change(n.Pos(), n.End(), strconv.FormatInt(i+1, 10))
					change(n.Pos(), n.End(), strconv.FormatInt(i-1, 10))
				}
			case *ast.IfStmt:
				// The operator of == and != negates by itself.
				if b, ok := n.Cond.(*ast.BinaryExpr); !ok || b.Op != token.EQL && b.Op != token.NEQ {
					change(n.Cond.Pos(), n.Cond.End(), "!("+text(n.Cond.Pos(), n.Cond.End())+")")
				}
			case *ast.ExprStmt, *ast.IncDecStmt:
				change(n.Pos(), n.End(), "")
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE { // what it defines would be missed
					change(n.Pos(), n.End(), "")
				}
			case *ast.ReturnStmt:
				if last := len(n.Results) - 1; failing && last >= 0 && text(n.Results[last].Pos(), n.End()) != "nil" {
					change(n.Results[last].Pos(), n.End(), "nil")
				}
			}
			return true
		})
	}
	visit(file, false)
	return all, nil
}

// fails reports whether the last that a function returns is an error.
func fails(t *ast.FuncType) bool {
	if t.Results == nil {
		return false
	}
	id, ok := t.Results.List[len(t.Results.List)-1].Type.(*ast.Ident)
	return ok && id.Name == "error"
}
