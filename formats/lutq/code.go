package lutq

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

const codeModule = "lutq_hf" // as auto_map names it

// CodeName is the file with which transformers opens a container. It is in every container's folder.
const CodeName = codeModule + ".py"

//go:embed lutq_hf.py
var code []byte

// Code returns the file [CodeName].
func Code() []byte { return slices.Clone(code) }

// autoMapKey is the key of a config.json that names code for transformers.
const autoMapKey = "auto_map"

// autoMap returns what makes transformers open a model of a config.json with [Code], when it is told to
// trust the folder's code: the classes that the file makes of the one that "architectures" names first. It is nil where
// that names none, or where the model comes with code of its own, which stays.
func autoMap(keys map[string]json.RawMessage) []byte {
	if _, ok := keys[autoMapKey]; ok {
		return nil
	}
	var names []string
	if json.Unmarshal(keys["architectures"], &names) != nil || len(names) == 0 || !identifier(names[0]) {
		return nil
	}
	class := codeModule + ".Lutq" + names[0]
	also := ""
	if strings.HasSuffix(names[0], "ForConditionalGeneration") { // as which models that see are opened
		also = fmt.Sprintf(`, "AutoModelForImageTextToText": "%s"`, class)
	}
	return fmt.Appendf(nil, `{"AutoConfig": "%sConfig", "AutoModelForCausalLM": "%s"%s}`, class, class, also)
}

// identifier reports whether a name is that of a class.
func identifier(name string) bool {
	for _, c := range name {
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return name != ""
}

// OwnCode reports whether a config.json names code of the model's own, which transformers runs instead of [Code].
func OwnCode(configJSON []byte) bool {
	var keys struct {
		AutoMap json.RawMessage `json:"auto_map"`
	}
	return json.Unmarshal(configJSON, &keys) == nil && keys.AutoMap != nil && !bytes.Contains(keys.AutoMap, []byte(codeModule+"."))
}
