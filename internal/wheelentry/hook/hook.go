// Package hook carries a function of package wheel to internal/wheelentry. It imports neither of them, so it does not
// know the type of the function. The initialization of internal/wheelentry asserts the type.
//
// The compiler would check a method of Wheel with an argument of an internal type. But users could call that method,
// and pass the bound of their timers: a generic function that takes the method infers the type and has its zero value.
package hook

// AfterFunc is what Set was given.
var AfterFunc any

// Set is called once, when package wheel is initialized.
func Set(f any) struct{} {
	AfterFunc = f
	return struct{}{}
}
