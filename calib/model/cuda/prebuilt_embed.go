//go:build linux && (amd64 || arm64) && !nocuda

package cuda

import (
	_ "embed"
	"sync"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

//go:embed prebuilt.gz
var prebuiltArchive []byte

var prebuiltPTX = sync.OnceValue(func() *driver.Prebuilt { return driver.NewPrebuilt(prebuiltArchive) })
