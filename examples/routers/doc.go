// Package routers has Examples of package httplimit with chi, gin and echo. It is a module of its own, so that
// cogwheel does not depend on the routers.
package routers
