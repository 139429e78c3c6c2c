package conformance_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// publicAPI returns docs/api.txt by package, as Go.
func publicAPI(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := make(map[string]*ast.File)
	for section := range strings.SplitSeq("\n\n"+read(t, "docs/api.txt"), "\n\npackage ") {
		folder, declarations, _ := strings.Cut(section, "\n")
		if folder == "" {
			continue
		}
		name := path.Base(folder)
		file, err := parser.ParseFile(token.NewFileSet(), folder, "package "+name+"\n"+declarations, 0)
		require.NoError(t, err)
		files[name] = file
	}
	require.Len(t, files, 9)
	return files
}

// enum is a public type with constants.
type enum struct {
	of        string // the type under it
	iota      bool   // its constants are numbered, so they are no flags
	constants int
	stringer  bool
}

func enums(file *ast.File) map[string]enum {
	all := make(map[string]enum)
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			spec := g.Specs[0].(*ast.TypeSpec)
			if under, ok := spec.Type.(*ast.Ident); ok {
				all[spec.Name.Name] = enum{of: under.Name}
			}
		}
	}
	update := func(typ ast.Expr, f func(e *enum)) {
		if name, ok := typ.(*ast.Ident); ok {
			if e, ok := all[name.Name]; ok {
				f(&e)
				all[name.Name] = e
			}
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && d.Name.Name == "String" {
				update(d.Recv.List[0].Type, func(e *enum) { e.stringer = true })
			}
		case *ast.GenDecl:
			if d.Tok != token.CONST {
				continue
			}
			var typ ast.Expr // an empty one repeats the one before
			for _, spec := range d.Specs {
				spec := spec.(*ast.ValueSpec)
				if spec.Type != nil {
					typ = spec.Type
				}
				update(typ, func(e *enum) {
					e.constants++
					if len(spec.Values) == 1 {
						value, ok := spec.Values[0].(*ast.Ident)
						e.iota = e.iota || ok && value.Name == "iota"
					}
				})
			}
		}
	}
	for name, e := range all {
		if e.constants < 2 {
			delete(all, name)
		}
	}
	return all
}

// brokenEnum returns the rule of CONTRIBUTING.md that an enum breaks, or "".
func brokenEnum(e enum) string {
	switch {
	case e.of == "string" && e.stringer:
		return "a string type needs no String"
	case e.of == "string":
		return ""
	case e.of != "uint8":
		return "a numbered enum is a uint8"
	case e.iota && !e.stringer:
		return "a numbered enum has a String method"
	}
	return ""
}

func TestConventions_Enums(t *testing.T) {
	t.Parallel()
	broken := make(map[string]string)
	found := 0
	for name, file := range publicAPI(t) {
		for typ, e := range enums(file) {
			found++
			if why := brokenEnum(e); why != "" {
				broken[name+"."+typ] = why
			}
		}
	}
	require.Empty(t, broken)
	require.GreaterOrEqual(t, found, 8)
}

// In calls, numbers of permits and tokens are int64, and all other numbers are int. Only histograms have uint64 and
// float64.
func TestConventions_NumbersInCalls(t *testing.T) {
	t.Parallel()
	found := 0
	for pkg, file := range publicAPI(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			f, ok := n.(*ast.FuncDecl)
			if !ok {
				return true
			}
			what := pkg + "." + f.Name.Name
			permits := pkg == "ratelimit" || pkg == "semaphore" || pkg == "httplimit"
			ast.Inspect(f.Type, func(n ast.Node) bool {
				field, ok := n.(*ast.Field)
				if !ok {
					return true
				}
				name, number := "", ""
				if len(field.Names) > 0 {
					name = field.Names[0].Name
				}
				if typ, ok := field.Type.(*ast.Ident); ok {
					number = typ.Name
				}
				switch number {
				case "int":
					found++
					require.False(t, permits && (name == "n" || name == ""), "%s: permits are int64", what)
				case "int64":
					found++
					require.True(t, permits || f.Name.Name == "Token", "%s: %s is neither permits nor a token", what, name)
				case "int8", "int16", "int32", "uint", "uint8", "uint16", "uint32", "uint64", "float32", "float64":
					require.Contains(t, "Count Seconds Quantile", f.Name.Name, "%s: %s", what, number)
				}
				return true
			})
			return false
		})
	}
	require.Greater(t, found, 30)
}

// Numbers in structs: int for numbers of now and for settings, int64 for permits, tokens, and counts that only grow.
func TestConventions_NumbersInStats(t *testing.T) {
	t.Parallel()
	found := 0
	for pkg, file := range publicAPI(t) {
		stats := file.Scope.Lookup("Stats")
		if stats == nil {
			continue
		}
		for _, field := range stats.Decl.(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
			if typ, ok := field.Type.(*ast.Ident); ok && (typ.Name == "int" || typ.Name == "int64") {
				found++
				gauge := strings.Contains(" Held Waiting Leases Pending Keys Grants Serving Running Claimed Paused ", " "+field.Names[0].Name+" ")
				permits := pkg == "semaphore" && field.Names[0].Name == "Held"
				require.Equal(t, gauge && !permits, typ.Name == "int", "%s.Stats.%s", pkg, field.Names[0].Name)
			}
		}
	}
	require.Greater(t, found, 25)
}
