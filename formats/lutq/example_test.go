package lutq_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/quantize"
)

// Open checks the headers of a container. Linear reads one layer of it, and checks that by its SHA-256.
func ExampleOpen() {
	dir, err := quantizeTiny()
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))

	m, err := lutq.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	layer := m.Linears()[0]
	w, err := m.Linear(layer)
	if err != nil {
		log.Fatal(err)
	}
	n, k := w.Shape()
	row := make([]float32, k)
	w.Row(row, 0)
	fmt.Println(len(m.Linears()), "layers")
	spec := m.Spec(layer)
	fmt.Printf("%s: %d rows of %d in %d bits, codebook %s, groups of %d\n", layer, n, k, spec.Bits, spec.Codebook, spec.Group)
	fmt.Printf("%.4f\n", row[:4])
	// Output:
	// 28 layers
	// model.layers.0.mlp.down_proj: 128 rows of 384 in 3 bits, codebook js, groups of 64
	// [-0.0344 -0.0073 0.0813 0.0813]
}

// quantizeTiny makes a container of 3 bits of a small model, as lutq quantize does.
func quantizeTiny() (string, error) {
	src, err := source.Open("../../calib/testdata/lutq-tiny", source.Options{})
	if err != nil {
		return "", err
	}
	defer src.Close()
	recipe, err := quantize.ParseRecipe([]byte(`{"bits": 3}`))
	if err != nil {
		return "", err
	}
	plan, err := quantize.NewPlan(src, recipe)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "lutq")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "out")
	_, err = plan.Run(context.Background(), out, quantize.RunOptions{})
	return out, err
}
