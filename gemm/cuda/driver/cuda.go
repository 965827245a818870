package driver

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sync/singleflight"
)

// Options adjust [Open].
type Options struct {
	Path     []string // folders to look for libraries in before all others
	CacheDir string   // compiled kernels; empty means DefaultCacheDir
	NoCache  bool     // compile every time

	// NoCompiler does as on a machine without NVRTC: kernels are loaded from the
	// PTX that was built ahead of time.
	NoCompiler bool
}

// CUDA is the way to the libraries. Each is opened when it is first needed, so
// that kernels can be compiled without a driver and a GPU used without cuBLAS.
// It may be used from any goroutine.
type CUDA struct {
	places places
	cache  *Cache
	kept   sync.Map           // machine code that the cache could not take, by key
	making singleflight.Group // of kernels that are being compiled, by key
	api    func() (*cudaAPI, error)
	nvrtc  func() (*nvrtcAPI, error)
	blas   func() (*blasAPI, error)
	blasLt func() (*blasLtAPI, error)
	nccl   func() (*ncclAPI, error)
	nvml   func() (*nvmlAPI, error)
}

// Open prepares the use of CUDA. It opens nothing yet, and fails, with
// [ErrNoCUDA], only in builds that cannot.
func Open(o Options) (*CUDA, error) {
	if !supported {
		return nil, ErrNoCUDA
	}
	c := &CUDA{places: searchPlaces(o.Path)}
	if !o.NoCache {
		dir := o.CacheDir
		if dir == "" {
			dir = DefaultCacheDir()
		}
		c.cache = NewCache(dir)
	}
	c.api = sync.OnceValues(func() (*cudaAPI, error) { return openCUDA(c.places) })
	c.nvrtc = sync.OnceValues(func() (*nvrtcAPI, error) { return openNVRTC(c.places, c.majors()) })
	if o.NoCompiler {
		c.nvrtc = func() (*nvrtcAPI, error) {
			return nil, &MissingError{Library: "NVRTC", Purpose: purposeNVRTC, Broken: []string{"it is not to be used"}}
		}
	}
	c.blas = sync.OnceValues(func() (*blasAPI, error) { return openBLAS(c.places, c.majors()) })
	c.blasLt = sync.OnceValues(func() (*blasLtAPI, error) { return openBLASLt(c.places, c.majors()) })
	c.nccl = sync.OnceValues(func() (*ncclAPI, error) { return openNCCL(c.places) })
	c.nvml = sync.OnceValues(func() (*nvmlAPI, error) { return openNVML(c.places) })
	return c, nil
}

// majors returns the versions of CUDA that libraries are looked for in, best
// first: machine code made by a newer major version than the driver's does
// not load.
func (c *CUDA) majors() []int {
	if api, err := c.api(); err == nil && api.version < 13000 {
		return []int{12, 13}
	}
	return []int{13, 12}
}

// sonames returns the names of a library for some major versions.
func sonames(stem string, majors []int) []string {
	var names []string
	for _, m := range majors {
		names = append(names, fmt.Sprintf("%s.so.%d", stem, m))
	}
	return names
}

// Cache returns the cache of compiled kernels, or nil where there is none.
func (c *CUDA) Cache() *Cache { return c.cache }

// Libraries opens all libraries and tells what was found.
func (c *CUDA) Libraries() []Library {
	cu := Library{Name: "CUDA driver", Purpose: purposeCUDA}
	if api, err := c.api(); err != nil {
		cu.Err = err
	} else {
		cu.Path, cu.Version = api.lib.path, versionName(api.version)
	}
	rtc := Library{Name: "NVRTC", Purpose: purposeNVRTC}
	if api, err := c.nvrtc(); err != nil {
		rtc.Err = err
	} else {
		rtc.Path, rtc.Version = api.lib.path, fmt.Sprintf("%d.%d", api.major, api.minor)
	}
	blas := Library{Name: "cuBLAS", Purpose: purposeBLAS}
	if api, err := c.blas(); err != nil {
		blas.Err = err
	} else {
		blas.Path, blas.Version = api.lib.path, api.version
	}
	nccl := Library{Name: "NCCL", Purpose: purposeNCCL}
	if api, err := c.nccl(); err != nil {
		nccl.Err = err
	} else {
		nccl.Path, nccl.Version = api.lib.path, api.version
	}
	return []Library{cu, rtc, blas, nccl}
}

// versionName prints 13020 as 13.2.
func versionName(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

const purposeCUDA = "run kernels on an NVIDIA GPU"

// cudaAPI holds the functions of the CUDA driver.
type cudaAPI struct {
	lib     *library
	version int   // of CUDA, as 1000·major + 10·minor
	initErr error // what cuInit said

	getErrorName, getErrorString, init, driverGetVersion                            uintptr
	deviceGetCount, deviceGet, deviceGetName, deviceGetAttribute, deviceTotalMem    uintptr
	deviceGetPCIBusID                                                               uintptr
	primaryCtxRetain, primaryCtxRelease, ctxSetCurrent, ctxSynchronize              uintptr
	memGetInfo, memAlloc, memFree, memHostAlloc, memFreeHost                        uintptr
	memcpyHtoD, memcpyDtoH, memcpyDtoD                                              uintptr
	memcpyHtoDAsync, memcpyDtoHAsync, memcpyDtoDAsync                               uintptr
	deviceCanAccessPeer, ctxEnablePeerAccess, memcpyPeerAsync                       uintptr
	memsetD8, memsetD32, memsetD8Async, memsetD32Async                              uintptr
	streamCreate, streamDestroy, streamSynchronize, streamWaitEvent                 uintptr
	streamBeginCapture, streamEndCapture                                            uintptr
	eventCreate, eventDestroy, eventRecord, eventSynchronize, eventElapsed          uintptr
	graphCreate, graphDestroy, graphGetNodes, graphAddKernelNode                    uintptr
	graphKernelNodeSetAttribute                                                     uintptr
	graphInstantiate, graphExecDestroy, graphLaunch, graphUpload                    uintptr
	graphExecKernelNodeSetParams                                                    uintptr
	moduleLoadDataEx, moduleUnload, moduleGetFunction, moduleGetGlobal              uintptr
	funcGetAttribute, funcSetAttribute, launchKernelEx, occupancyBlocks, occupancyC uintptr
}

func openCUDA(p places) (*cudaAPI, error) {
	lib, err := p.find(purposeCUDA, []string{"libcuda.so.1"}, nil)
	if err != nil {
		return nil, err
	}
	a := &cudaAPI{lib: lib}
	err = lib.resolve(purposeCUDA, []symbol{
		{"cuGetErrorName", &a.getErrorName},
		{"cuGetErrorString", &a.getErrorString},
		{"cuInit", &a.init},
		{"cuDriverGetVersion", &a.driverGetVersion},
		{"cuDeviceGetCount", &a.deviceGetCount},
		{"cuDeviceGet", &a.deviceGet},
		{"cuDeviceGetName", &a.deviceGetName},
		{"cuDeviceGetAttribute", &a.deviceGetAttribute},
		{"cuDeviceTotalMem_v2", &a.deviceTotalMem},
		{"cuDevicePrimaryCtxRetain", &a.primaryCtxRetain},
		{"cuDevicePrimaryCtxRelease_v2", &a.primaryCtxRelease},
		{"cuCtxSetCurrent", &a.ctxSetCurrent},
		{"cuCtxSynchronize", &a.ctxSynchronize},
		{"cuMemGetInfo_v2", &a.memGetInfo},
		{"cuMemAlloc_v2", &a.memAlloc},
		{"cuMemFree_v2", &a.memFree},
		{"cuMemHostAlloc", &a.memHostAlloc},
		{"cuMemFreeHost", &a.memFreeHost},
		{"cuMemcpyHtoD_v2", &a.memcpyHtoD},
		{"cuMemcpyDtoH_v2", &a.memcpyDtoH},
		{"cuMemcpyDtoD_v2", &a.memcpyDtoD},
		{"cuMemcpyHtoDAsync_v2", &a.memcpyHtoDAsync},
		{"cuMemcpyDtoHAsync_v2", &a.memcpyDtoHAsync},
		{"cuMemcpyDtoDAsync_v2", &a.memcpyDtoDAsync},
		{"cuMemsetD8_v2", &a.memsetD8},
		{"cuMemsetD32_v2", &a.memsetD32},
		{"cuMemsetD8Async", &a.memsetD8Async},
		{"cuMemsetD32Async", &a.memsetD32Async},
		{"cuStreamCreate", &a.streamCreate},
		{"cuStreamDestroy_v2", &a.streamDestroy},
		{"cuStreamSynchronize", &a.streamSynchronize},
		{"cuStreamWaitEvent", &a.streamWaitEvent},
		{"cuStreamBeginCapture_v2", &a.streamBeginCapture},
		{"cuStreamEndCapture", &a.streamEndCapture},
		{"cuEventCreate", &a.eventCreate},
		{"cuEventDestroy_v2", &a.eventDestroy},
		{"cuEventRecord", &a.eventRecord},
		{"cuEventSynchronize", &a.eventSynchronize},
		{"cuEventElapsedTime", &a.eventElapsed},
		{"cuGraphCreate", &a.graphCreate},
		{"cuGraphDestroy", &a.graphDestroy},
		{"cuGraphGetNodes", &a.graphGetNodes},
		{"cuGraphAddKernelNode_v2", &a.graphAddKernelNode},
		{"cuGraphKernelNodeSetAttribute", &a.graphKernelNodeSetAttribute},
		{"cuGraphInstantiateWithFlags", &a.graphInstantiate},
		{"cuGraphExecDestroy", &a.graphExecDestroy},
		{"cuGraphLaunch", &a.graphLaunch},
		{"cuGraphUpload", &a.graphUpload},
		{"cuGraphExecKernelNodeSetParams_v2", &a.graphExecKernelNodeSetParams},
		{"cuModuleLoadDataEx", &a.moduleLoadDataEx},
		{"cuModuleUnload", &a.moduleUnload},
		{"cuModuleGetFunction", &a.moduleGetFunction},
		{"cuModuleGetGlobal_v2", &a.moduleGetGlobal},
		{"cuFuncGetAttribute", &a.funcGetAttribute},
		{"cuFuncSetAttribute", &a.funcSetAttribute},
		{"cuLaunchKernelEx", &a.launchKernelEx},
		{"cuOccupancyMaxActiveBlocksPerMultiprocessor", &a.occupancyBlocks},
		{"cuOccupancyMaxActiveClusters", &a.occupancyC},
	})
	if err != nil {
		return nil, err
	}
	peers := []symbol{
		{"cuDeviceCanAccessPeer", &a.deviceCanAccessPeer},
		{"cuCtxEnablePeerAccess", &a.ctxEnablePeerAccess},
		{"cuMemcpyPeerAsync", &a.memcpyPeerAsync},
	}
	if lib.resolve(purposeCUDA, peers) != nil { // one GPU needs none of them
		a.deviceCanAccessPeer, a.ctxEnablePeerAccess, a.memcpyPeerAsync = 0, 0, 0
	}
	if lib.resolve(purposeCUDA, []symbol{{"cuDeviceGetPCIBusId", &a.deviceGetPCIBusID}}) != nil { // a meter alone asks for it
		a.deviceGetPCIBusID = 0
	}
	var v int32
	if err := a.check("cuDriverGetVersion", call(a.driverGetVersion, uintptr(unsafe.Pointer(&v)))); err != nil {
		return nil, err
	}
	a.version = int(v)
	a.initErr = a.check("cuInit", call(a.init, 0))
	return a, nil
}

// check turns a result into an error.
func (a *cudaAPI) check(op string, result uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	e := &Error{Op: op, Code: int(code)}
	var s *byte
	if call(a.getErrorName, uintptr(code), uintptr(unsafe.Pointer(&s))) == 0 {
		e.Name = goString(s)
	}
	s = nil
	if call(a.getErrorString, uintptr(code), uintptr(unsafe.Pointer(&s))) == 0 {
		e.Detail = goString(s)
	}
	return e
}

// DeviceInfo describes a GPU.
type DeviceInfo struct {
	Index            int    `json:"index"`
	Name             string `json:"name"`
	Major            int    `json:"major"` // compute capability
	Minor            int    `json:"minor"`
	SMs              int    `json:"sms"`                  // streaming multiprocessors
	L2               int    `json:"l2_bytes"`             // of level-2 cache
	SharedPerBlock   int    `json:"shared_per_block"`     // bytes that a block can have when it asks for them
	SharedPerSM      int    `json:"shared_per_sm"`        // bytes
	RegistersPerSM   int    `json:"registers_per_sm"`     // of 32 bits
	ThreadsPerSM     int    `json:"threads_per_sm"`       //
	Memory           int64  `json:"memory_bytes"`         //
	MemoryBusBits    int    `json:"memory_bus_bits"`      //
	ClockKHz         int    `json:"clock_khz"`            // at most
	MemoryClockKHz   int    `json:"memory_clock_khz"`     // at most
	CooperativeGrids bool   `json:"cooperative_launches"` //
	Clusters         bool   `json:"clusters"`             // thread block clusters can be launched
	CUDA             string `json:"cuda"`                 // the version that the driver speaks, such as "13.0"
}

// Arch returns the architecture to compile for, with the features that only
// this generation has where there are such: sm_80, sm_90a.
func (i DeviceInfo) Arch() string {
	s := fmt.Sprintf("sm_%d%d", i.Major, i.Minor)
	if i.Major >= 9 {
		s += "a"
	}
	return s
}

// ready returns the functions of a driver that has been initialized.
func (c *CUDA) ready() (*cudaAPI, error) {
	a, err := c.api()
	if err != nil {
		return nil, err
	}
	return a, a.initErr
}

// DeviceCount returns the number of GPUs, which is 0 where there is a driver
// and no GPU; without a driver it is an error.
func (c *CUDA) DeviceCount() (int, error) {
	a, err := c.ready()
	if IsNoDevice(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var n int32
	if err := a.check("cuDeviceGetCount", call(a.deviceGetCount, uintptr(unsafe.Pointer(&n)))); err != nil {
		return 0, err
	}
	return int(n), nil
}

// The numbers of CUdevice_attribute.
const (
	attrClockRate            = 13
	attrMultiprocessors      = 16
	attrMemoryClockRate      = 36
	attrMemoryBusWidth       = 37
	attrL2                   = 38
	attrThreadsPerSM         = 39
	attrMajor                = 75
	attrMinor                = 76
	attrSharedPerSM          = 81
	attrRegistersPerSM       = 82
	attrCooperativeLaunch    = 95
	attrSharedPerBlockOptIn  = 97
	attrClusterLaunch        = 120
	maxDeviceName            = 256
	cuMemHostAllocPortable   = 1
	cuStreamNonBlocking      = 1
	cuEventDisableTiming     = 2
	cuCaptureModeThreadLocal = 1
)

// DeviceInfo describes GPU i.
func (c *CUDA) DeviceInfo(i int) (DeviceInfo, error) {
	a, err := c.ready()
	if err != nil {
		return DeviceInfo{}, err
	}
	dev, err := a.device(i)
	if err != nil {
		return DeviceInfo{}, err
	}
	info := DeviceInfo{Index: i, CUDA: versionName(a.version)}
	name := make([]byte, maxDeviceName)
	errs := []error{a.check("cuDeviceGetName", call(a.deviceGetName, uintptr(unsafe.Pointer(&name[0])), maxDeviceName, uintptr(dev)))}
	before, _, _ := strings.Cut(string(name), "\x00")
	info.Name = before
	var total uint64
	errs = append(errs, a.check("cuDeviceTotalMem_v2", call(a.deviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(dev))))
	info.Memory = int64(total)
	get := func(attribute uintptr) int {
		var v int32
		errs = append(errs, a.check("cuDeviceGetAttribute", call(a.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), attribute, uintptr(dev))))
		return int(v)
	}
	info.Major, info.Minor = get(attrMajor), get(attrMinor)
	info.SMs, info.L2 = get(attrMultiprocessors), get(attrL2)
	info.SharedPerBlock, info.SharedPerSM = get(attrSharedPerBlockOptIn), get(attrSharedPerSM)
	info.RegistersPerSM, info.ThreadsPerSM = get(attrRegistersPerSM), get(attrThreadsPerSM)
	info.MemoryBusBits = get(attrMemoryBusWidth)
	info.ClockKHz, info.MemoryClockKHz = get(attrClockRate), get(attrMemoryClockRate)
	info.CooperativeGrids, info.Clusters = get(attrCooperativeLaunch) != 0, get(attrClusterLaunch) != 0
	return info, errors.Join(errs...)
}

// device returns the driver's number of GPU i.
func (a *cudaAPI) device(i int) (int32, error) {
	var dev int32
	if err := a.check("cuDeviceGet", call(a.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(i))); err != nil {
		return 0, fmt.Errorf("GPU %d: %w", i, err)
	}
	return dev, nil
}
