// Package driver calls the CUDA driver, NVRTC, cuBLAS, NCCL and NVML without cgo: the
// libraries are opened when they are first needed, and a machine without them
// gets an error that says where they were looked for.
//
// # From source to result
//
//	c, err := driver.Open(driver.Options{})    // opens no library yet
//	d, err := c.OpenDevice(0)
//	err = d.Do(func() error {                  // on the device's own thread
//		m, err := d.LoadKernel(driver.Kernel{Name: "k.cu", Source: source})
//		f, err := m.Function("k")
//		s, err := d.NewStream()
//		y, err := d.Alloc(4 * n)
//		args := new(driver.Args).Ptr(y).Int(n).F32(scale).Struct(driver.Bytes(codebook[:]))
//		err = f.Launch(s, driver.Launch{Grid: driver.Dim{X: blocks}, Block: driver.Dim{X: 128}}, args)
//		return d.Read(driver.Bytes(out), y)    // waits for the kernel
//	})
//
// [CUDA.Compile] and [CUDA.Cubin] need neither a GPU nor its driver.
//
// # Threads
//
// A context belongs to a thread, so each [Device] has one goroutine that is
// locked to its own. Everything but [CUDA]'s methods, [Device.Do] and
// [Device.Close] is called there, inside Do.
//
// Several GPUs are several devices ([CUDA.OpenDevices]), whose goroutines go on
// beside each other. Once they are connected ([CUDA.ConnectPeers]), kernels of
// one read and write the memory of another by its addresses.
//
// # Memory
//
// C code sees memory of Go only while a call lasts. What the GPU copies to or
// from while the program goes on is page-locked memory outside Go's heap, a
// [HostBuffer]. A launch copies its arguments before it returns.
//
// # Builds
//
// On Linux (amd64, arm64) a program that uses this package links to the C
// library dynamically. With the tag nocuda, and on other systems, it does not,
// and [Open] returns [ErrNoCUDA].
package driver
