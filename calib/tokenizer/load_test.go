package tokenizer

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// model is a model section with more fields put in; it merges a and b.
func model(fields string) string {
	return `{"type":"BPE",` + fields + `"vocab":{"a":0,"b":1,"ab":2,"Ġ":3},"merges":["a b"]}`
}

// listed is an added token with more fields put in.
func listed(id int, content, fields string) string {
	all := `"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false`
	if fields != "" {
		key, _, _ := strings.Cut(fields, ":")
		all = strings.Replace(all, key+":false", fields, 1)
	}
	return fmt.Sprintf(`{"id":%d,"content":%q,%s}`, id, content, all)
}

func TestParseErrors(t *testing.T) {
	with := func(section, content string) string {
		return fmt.Sprintf(`{%q:%s,"model":%s}`, section, content, model(""))
	}
	vocab := func(v string) string { return `{"model":{"type":"BPE","vocab":` + v + `,"merges":[]}}` }
	merges := func(m string) string { return `{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":` + m + `}}` }
	template := func(single string) string {
		return with("post_processor", `{"type":"TemplateProcessing","single":`+single+`,"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},"<t>":{"id":"<t>","ids":[77],"tokens":["<t>"]}}}`)
	}
	tests := []struct{ name, file, want string }{
		{"empty", "", "not valid JSON"},
		{"cut short", `{"model":`, "not valid JSON at byte 9"},
		{"garbage behind", `{} x`, "not valid JSON"},
		{"not an object", `[]`, "must not"},
		{"not UTF-8", "{\"\xff\":1}", "not valid UTF-8"},
		{"newer version", `{"version":"2.0"}`, `version "2.0" is not supported`},
		{"no model", `{}`, "model"},
		{"null model", `{"model":null}`, "model"},
		{"model without type", `{"model":{}}`, "field type is missing"},
		{"other model", `{"model":{"type":"Unigram"}}`, `model: type "Unigram" is not supported`},
		{"unknown option of the model", `{"model":` + model(`"magic":true,`) + `}`, `unknown field "magic"`},
		{"dropout", `{"model":` + model(`"dropout":0.1,`) + `}`, "dropout"},
		{"continuing prefix", `{"model":` + model(`"continuing_subword_prefix":"##",`) + `}`, "continuing_subword_prefix"},
		{"end of word suffix", `{"model":` + model(`"end_of_word_suffix":"</w>",`) + `}`, "end_of_word_suffix"},
		{"option of the wrong type", `{"model":` + model(`"fuse_unk":"no",`) + `}`, "fuse_unk must not be a JSON string"},
		{"no vocab", `{"model":{"type":"BPE","merges":[]}}`, "vocab is missing"},
		{"no merges", `{"model":{"type":"BPE","vocab":{}}}`, "merges is missing"},
		{"vocab is a list", vocab(`["a"]`), "vocab is not an object"},
		{"id is a string", vocab(`{"a":"0"}`), `the id of token "a" is not an integer`},
		{"id is a fraction", vocab(`{"a":0.5}`), "not an integer"},
		{"id is an object", vocab(`{"a":{"b":1}}`), "not an integer"},
		{"id is negative", vocab(`{"a":-1}`), `id -1 of token "a" is out of range`},
		{"id is huge", vocab(`{"a":4194304}`), "out of range"},
		{"id is beyond integers", vocab(`{"a":99999999999999999999}`), "not an integer"},
		{"id twice", vocab(`{"a":0,"b":0}`), `id 0 belongs to both "a" and "b"`},
		{"token twice", vocab(`{"a":0,"a":1}`), `token "a" twice`},
		{"merges are an object", merges(`{}`), "merges are not a list"},
		{"merge is a number", merges(`[1]`), "merges are not a list"},
		{"merges of both forms", merges(`["a b",["a","b"]]`), "merges are not a list"},
		{"merge without space", merges(`["ab"]`), `merge 0 ("ab")`},
		{"merge with two spaces", merges(`["a  b"]`), `merge 0 ("a  b")`},
		{"merge of three", merges(`[["a","b","c"]]`), "merge 0 has 3 operands"},
		{"merge of an unknown token", merges(`[["a","x"]]`), `token "x" is not in the vocabulary`},
		{"merge into an unknown token", merges(`["a b"]`), `merge 0 ("a" and "b"): token "ab" is not in the vocabulary`},
		{"unknown normalizer", with("normalizer", `{"type":"Precompiled"}`), `normalizer: type "Precompiled" is not supported`},
		{"normalizer without type", with("normalizer", `{}`), "normalizer: field type is missing"},
		{"unknown option of a normalizer", with("normalizer", `{"type":"NFC","fast":true}`), `unknown field "fast"`},
		{"replace by a broken regular expression", with("normalizer", `{"type":"Replace","pattern":{"Regex":"a+("},"content":"b"}`), `normalizer: pattern of Replace: regular expression "a+(": at byte 3: a closing parenthesis is missing`},
		{"replace without pattern", with("normalizer", `{"type":"Replace","pattern":{"String":""},"content":"b"}`), "normalizer: pattern of Replace: neither"},
		{"replace without content", with("normalizer", `{"type":"Replace","pattern":{"String":"a"}}`), "content is missing"},
		{"null in a sequence", with("normalizer", `{"type":"Sequence","normalizers":[null]}`), "entry 0 of Sequence is null"},
		{"unknown pre-tokenizer", with("pre_tokenizer", `{"type":"UnicodeScripts"}`), `pre_tokenizer: type "UnicodeScripts" is not supported`},
		{"unknown pattern", with("pre_tokenizer", `{"type":"Split","pattern":{"Regex":"(?~a)"},"behavior":"Isolated","invert":false}`), `pattern of Split: regular expression "(?~a)": at byte 1: this kind of group is not supported`},
		{"unknown behaviour", with("pre_tokenizer", `{"type":"Split","pattern":{"String":" "},"behavior":"isolated","invert":false}`), `behavior "isolated"`},
		{"punctuation and behaviour", with("pre_tokenizer", `{"type":"Punctuation","behavior":"removed"}`), `behavior "removed" of Punctuation`},
		{"split without invert", with("pre_tokenizer", `{"type":"Split","pattern":{"String":" "},"behavior":"Isolated"}`), "invert is missing"},
		{"split at nothing", with("pre_tokenizer", `{"type":"Split","pattern":{"String":""},"behavior":"Isolated","invert":false}`), "pre_tokenizer: pattern of Split: neither"},
		{"byte-level without prefix option", with("pre_tokenizer", `{"type":"ByteLevel"}`), "add_prefix_space is missing"},
		{"byte-level not last", with("pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},{"type":"Digits","individual_digits":true}]}`), "ByteLevel is not the last step"},
		{"unknown scheme", with("pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"maybe"}`), `prepend_scheme "maybe"`},
		{"replacement of two characters", with("pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`), `replacement "__"`},
		{"contradictory scheme", with("pre_tokenizer", `{"type":"Metaspace","replacement":"_","add_prefix_space":false}`), "contradicts"},
		{"scheme first behind strip", `{"normalizer":{"type":"Strip","strip_left":true,"strip_right":false},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},"model":` + model("") + `}`, "prepend_scheme first"},
		{"unknown post-processor", with("post_processor", `{"type":"PairProcessing"}`), `post_processor: type "PairProcessing" is not supported`},
		{"token around the text without id", with("post_processor", `{"type":"BertProcessing","cls":["a"],"sep":["b",1]}`), "cls or sep is not a token and its id"},
		{"token around the text with unknown id", with("post_processor", `{"type":"RobertaProcessing","cls":["a",0],"sep":["b",77]}`), `RobertaProcessing: id 77 of "b"`},
		{"template as text", template(`"<s> $A"`), "must not be a JSON string"},
		{"template without text", template(`[]`), "lacks the text"},
		{"template with second text", template(`[{"Sequence":{"id":"B","type_id":0}}]`), "part 0 of the template"},
		{"template with text twice", template(`[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]`), "part 1 of the template"},
		{"template with unknown token", template(`[{"SpecialToken":{"id":"<u>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]`), `special_tokens lacks "<u>"`},
		{"template with unknown id", template(`[{"SpecialToken":{"id":"<t>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]`), "id 77"},
		{"unknown decoder", with("decoder", `{"type":"WordPiece"}`), `decoder: type "WordPiece" is not supported`},
		{"negative strip", with("decoder", `{"type":"Strip","content":" ","start":-1,"stop":0}`), "negative"},
		{"strip of two characters", with("decoder", `{"type":"Strip","content":"ab","start":1,"stop":0}`), `content "ab"`},
		{"added token without id", with("added_tokens", `[{"content":"<s>"}]`), "added_tokens: entry 0: field id is missing"},
		{"added token without flags", with("added_tokens", `[{"id":5,"content":"<s>"}]`), "single_word is missing"},
		{"added token with unknown flag", with("added_tokens", `[{"id":5,"content":"<s>","bold":true}]`), `unknown field "bold"`},
		{"added token with a negative id", with("added_tokens", `[`+listed(-4, "<s>", "")+`]`), "out of range"},
		{"added token normalized to nothing", `{"normalizer":{"type":"Strip","strip_left":true,"strip_right":true},"added_tokens":[` + listed(5, "  ", `"normalized":true`) + `],"model":` + model("") + `}`, "nothing of token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parse([]byte(test.file), nil)
			if err == nil {
				t.Fatalf("no error, want one with %q", test.want)
			}
			if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got error %q, want one line with %q", err, test.want)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	tests := []struct {
		name, file, text string
		want             []int
	}{
		{"bare", `{"model":` + model("") + `}`, "abba", []int{2, 1, 0}},
		{"nulls", `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,"model":` +
			model(`"dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":"",`) + `}`, "ab", []int{2}},
		{"no dropout", `{"model":` + model(`"dropout":0.0,`) + `}`, "ab", []int{2}},
		{"merges as pairs", `{"model":{"type":"BPE","vocab":{"a":0," ":1,"a ":2},"merges":[["a"," "]]}}`, "a a", []int{2, 0}},
		{"merges with a header", `{"model":{"type":"BPE","vocab":{"a":0,"aa":1},"merges":["#version: 0.2","a a"]}}`, "aaa", []int{1, 0}},
		{"a later rank wins", `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"ba":3},"merges":["a b","b a","a b"]}}`, "aba", []int{0, 3}},
		{"empty vocabulary", `{"model":{"type":"BPE","vocab":{},"merges":[]}}`, "ab", nil},
		{"unknown section", `{"note":"x","model":` + model("") + `}`, "ab", []int{2}},
		{"lower-case token", `{"normalizer":{"type":"Lowercase"},"added_tokens":[` + listed(4, "AB", `"normalized":true`) + `],"model":` + model("") + `}`, "aBa", []int{4, 0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tok, err := parse([]byte(test.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tok.Encode(test.text, true); err != nil || !slices.Equal(got, test.want) {
				t.Errorf("%q: got %v (error %v), want %v", test.text, got, err, test.want)
			}
		})
	}
}

// FuzzLoad checks that no file makes parsing panic and that a tokenizer that it accepts can be used.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"model":null}`, `{"model":` + model("") + `}`,
		`{"model":` + model(`"byte_fallback":true,"fuse_unk":true,"unk_token":"a","ignore_merges":true,`) + `}`,
		`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"a"},{"type":"NFKC"},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Lowercase"},{"type":"Replace","pattern":{"String":"b"},"content":""}]},"model":` + model("") + `}`,
		`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true},{"type":"Split","pattern":{"String":"ab"},"behavior":"MergedWithNext","invert":true}]},"decoder":{"type":"Metaspace","replacement":"▁"},"model":` + model("") + `}`,
		`{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true},"model":` + model("") + `}`,
		`{"normalizer":{"type":"Sequence","normalizers":[{"type":"StripAccents"},{"type":"Nmt"},{"type":"Replace","pattern":{"Regex":"\\p{N}+(?!b)"},"content":"a"}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Punctuation"},{"type":"Whitespace"},{"type":"WhitespaceSplit"},{"type":"BertPreTokenizer"}]},"model":` + model("") + `}`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?i:'s|a)|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{M}&&[^\\p{Han}]]*|\\s+(?!\\S)|(?<=b)\\x{e9}{1,3}+"},"behavior":"MergedWithPrevious","invert":true},"post_processor":{"type":"BertProcessing","cls":["a",0],"sep":["b",1]},"decoder":{"type":"Replace","pattern":{"Regex":"^a"},"content":""},"model":` + model("") + `}`,
		`{"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":2}]},"model":` + model("") + `}`,
		`{"added_tokens":[` + listed(4, "<s>", `"lstrip":true`) + `,` + listed(5, "s", `"single_word":true`) + `,` + listed(6, "A", `"normalized":true`) + `],"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[4],"tokens":["<s>"]}}},"model":` + model("") + `}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := parse(data, nil)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		for _, s := range tok.splitters {
			if m, ok := s.(matchSplit); ok {
				if r, ok := m.pattern.(regex); ok {
					r.re.MatchTimeout = 10 * time.Millisecond
				}
			}
		}
		ids, err := tok.Encode("<s> abba  12▁\té A sAs\xff", true)
		if err != nil {
			return
		}
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok {
				t.Errorf("id %d of %d has no token", id, tok.VocabSize())
			}
		}
		if _, err := tok.Decode(ids); err != nil {
			t.Error(err)
		}
	})
}

// FuzzEncodeDecode checks that a byte-level tokenizer loses nothing, and that SentencePiece style loses
// nothing but ▁ as long as no special token (after which it puts a space) is in the text.
func FuzzEncodeDecode(f *testing.F) {
	for _, s := range []string{"", "a", " a  b\n\n c\t", "don't 'S 'ſ", "1234 ½", "e\u0301", "🚀▁<|end_of_text|><s>", "\x00\xff", "日本語 한국어"} {
		f.Add(s)
	}
	type subject struct {
		name string
		tok  *Tokenizer
	}
	var subjects []subject
	for _, path := range []string{tinyFile, byteLevelFile, spFile, tekkenDir, kimiDir} {
		subjects = append(subjects, subject{path, load(f, path)})
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range subjects {
			if s.name == spFile {
				text = strings.ReplaceAll(text, "<", "(")
			}
			ids, err := s.tok.Encode(text, false)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.tok.Decode(ids)
			if err != nil {
				t.Fatal(err)
			}
			want := text
			if !utf8.ValidString(text) {
				want = validUTF8(text)
			}
			if s.name == spFile {
				want = strings.ReplaceAll(want, "▁", " ")
			}
			if got != want {
				t.Errorf("%s: got %q, want %q", s.name, got, want)
			}
		}
	})
}

// readShared returns the contents of a file in the shared folder, unpacked.
func readShared(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(sharedPath(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
