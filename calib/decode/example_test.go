package decode_test

import (
	"context"
	"fmt"
	"log"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
)

// A model goes on with a prompt, with the most likely token each time.
func ExampleWrite() {
	from, err := source.Open("../testdata/lutq-tiny", source.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer from.Close()
	tok, err := tokenizer.Read(from)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := cpu.New(cpu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	m, err := model.Open(from, modelcpu.New(engine), model.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := decode.NewSession(m, decode.Options{Context: 64})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	prompt, err := tok.Encode("The harbour", true)
	if err != nil {
		log.Fatal(err)
	}
	texts, err := decode.Write(context.Background(), s, [][]int{prompt}, decode.WriteOptions{MaxTokens: 12}, func(int, int) bool { return true })
	if err != nil {
		log.Fatal(err)
	}
	text, err := tok.Decode(texts[0].Tokens)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q, %s\n", text, texts[0].End)
	// Output:
	// ", and the porter, the pilgrim", length
}
