//go:build !linux || (!amd64 && !arm64) || nocuda

package driver

const supported = false

func dlopen(string) (uintptr, error) { return 0, ErrNoCUDA }

func dlsym(uintptr, string) (uintptr, error) { return 0, ErrNoCUDA }

// call is never reached: without dlopen there is no function to call.
//
//go:uintptrescapes
func call(uintptr, ...uintptr) uintptr { panic("driver: " + ErrNoCUDA.Error()) }

func threadID() int { return -1 }
