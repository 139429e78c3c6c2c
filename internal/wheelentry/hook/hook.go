// Package hook carries a function of package wheel to internal/wheelentry. It imports neither of them, so the type of
// the function is not known here.
package hook

// AfterFunc is what Set was given.
var AfterFunc any

// Set is called once, when package wheel is initialized.
func Set(f any) struct{} {
	AfterFunc = f
	return struct{}{}
}
