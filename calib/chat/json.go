package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// toJSON is the filter of that name as transformers has it: json.dumps of Python without escapes for what is not ASCII,
// with keyword indent.
func toJSON(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	indent := -1
	for name, v := range params.KwArgs {
		switch name {
		case "indent":
			if !v.IsNil() {
				indent = v.Integer()
			}
		case "ensure_ascii", "sort_keys", "separators": // as they are
		default:
			return exec.AsValue(fmt.Errorf("tojson has no argument %s", name))
		}
	}
	var b strings.Builder
	if err := dump(&b, in.Interface(), indent, 1); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(b.String())
}

// dump writes a value, whose contents are so many levels deep.
func dump(b *strings.Builder, value any, indent, level int) error {
	const deepest = 100
	if level > deepest {
		return fmt.Errorf("tojson: more than %d levels", deepest)
	}
	switch v := value.(type) {
	case nil:
		b.WriteString("null")
		return nil
	case *exec.Value:
		return dump(b, v.Interface(), indent, level)
	case *exec.Dict:
		return dumpList(b, "{}", len(v.Pairs), indent, level, func(i int) error {
			if err := dump(b, v.Pairs[i].Key.String(), indent, level+1); err != nil {
				return err
			}
			b.WriteString(": ")
			return dump(b, v.Pairs[i].Value, indent, level+1)
		})
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Map:
		keys := make(map[string]reflect.Value)
		for _, k := range v.MapKeys() {
			keys[fmt.Sprint(k.Interface())] = k
		}
		names := slices.Sorted(maps.Keys(keys))
		return dumpList(b, "{}", len(names), indent, level, func(i int) error {
			if err := dump(b, names[i], indent, level+1); err != nil {
				return err
			}
			b.WriteString(": ")
			return dump(b, v.MapIndex(keys[names[i]]).Interface(), indent, level+1)
		})
	case reflect.Slice, reflect.Array:
		return dumpList(b, "[]", v.Len(), indent, level, func(i int) error { return dump(b, v.Index(i).Interface(), indent, level+1) })
	case reflect.Pointer, reflect.Struct, reflect.Func, reflect.Chan:
		return fmt.Errorf("tojson: %T is no JSON", value)
	}
	var one bytes.Buffer
	enc := json.NewEncoder(&one)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	// Python leaves these two as they are.
	text := strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSuffix(one.String(), "\n"))
	b.WriteString(text)
	return nil
}

// dumpList writes n items between brackets.
func dumpList(b *strings.Builder, brackets string, n, indent, level int, item func(i int) error) error {
	line := func(level int) {
		if indent >= 0 && n > 0 {
			b.WriteString("\n" + strings.Repeat(" ", indent*level))
		}
	}
	b.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			b.WriteString(",")
			if indent < 0 {
				b.WriteString(" ")
			}
		}
		line(level)
		if err := item(i); err != nil {
			return err
		}
	}
	line(level - 1)
	b.WriteByte(brackets[1])
	return nil
}
