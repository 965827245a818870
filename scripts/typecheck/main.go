// Command typecheck checks the types of the module's packages and their tests as they are compiled for another system or
// with other tags, without compiling what they import: which go build and go vet do, and which takes minutes where nothing
// is compiled yet.
//
//	go run ./scripts/typecheck -os darwin -arch arm64 -tags nocuda ./...
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	goos, arch := flag.String("os", runtime.GOOS, "GOOS"), flag.String("arch", runtime.GOARCH, "GOARCH")
	tags := flag.String("tags", "", "as go build takes it")
	flag.Parse()
	if err := check(*goos, *arch, *tags, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// unit is a package, or one with its tests, as go list prints it.
type unit struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// check goes through the packages in go list's order, in which what is imported comes first.
func check(goos, arch, tags string, patterns []string) error {
	list := exec.Command("go", append([]string{"list", "-deps", "-test", "-tags=" + tags, "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error"}, patterns...)...)
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	var errs []error
	for units := json.NewDecoder(out); ; {
		var u unit
		if err := units.Decode(&u); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if u.Error != nil {
			errs = append(errs, fmt.Errorf("%s: %s", u.ImportPath, u.Error.Err))
		}
		if strings.HasSuffix(u.ImportPath, ".test") || u.ImportPath == "unsafe" { // what go test generates
			continue
		}
		pkg, err := u.check(arch, checked)
		checked[u.ImportPath] = pkg
		errs = append(errs, err)
	}
	return errors.Join(append(errs, list.Wait())...)
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }

// check returns the package's types. Functions of other modules have their types checked, and not their bodies.
func (u *unit) check(arch string, checked map[string]*types.Package) (*types.Package, error) {
	ours := u.Module != nil && u.Module.Main
	var errs []error
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range u.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(u.Dir, name)
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	config := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if to, ok := u.ImportMap[path]; ok {
				path = to
			}
			if p := checked[path]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("%s has not been checked", path)
		}),
		Sizes:            types.SizesFor("gc", arch),
		IgnoreFuncBodies: !ours,
		Error:            func(err error) { errs = append(errs, err) },
	}
	if u.Module != nil && u.Module.GoVersion != "" {
		config.GoVersion = "go" + u.Module.GoVersion
	}
	pkg, _ := config.Check(u.ImportPath, fset, files, nil) // the errors are in errs
	if !ours {
		errs = nil // a compiler knows more of the standard library's packages, whose bodies are left out
	}
	return pkg, errors.Join(errs...)
}
