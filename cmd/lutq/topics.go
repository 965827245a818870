package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/export"
)

// topic is a text that "lutq help NAME" prints and that no command does.
type topic struct {
	name, short string
	page        string // the command in whose manual page it stands
	long        string
}

func topics() []topic {
	return []topic{
		{"formats", "What quantize can store weights as, and from what", "quantize", strings.Replace(formatsTopic, "@presets\n", presetLines(), 1)},
		{"layouts", "Layouts of other kernels that repack writes and reads", "repack", layoutsTopic},
		{"learning", "How quantize fits weights to text", "quantize", learningTopic},
		{"sparse", "How quantize keeps two weights of four", "quantize", sparseTopic},
		{"tables", "Products through tables of activations, and LUT Tensor Core", "eval-ppl", tablesTopic},
		{"fp8", "What --act fp8 rounds, and what it costs", "eval-ppl", fp8Topic},
		{"timing", "How bench times products on a GPU, and whole models", "bench", timingTopic},
		{"environment", "The environment variables that lutq reads", "lutq", environmentTopic},
	}
}

// newTopics returns the topics as commands that do nothing else.
func newTopics() []*cobra.Command {
	var all []*cobra.Command
	for _, t := range topics() {
		all = append(all, &cobra.Command{Use: t.name, Short: t.short, Long: t.long})
	}
	return all
}

// presetLines says what each target has quantize set.
func presetLines() string {
	var b strings.Builder
	for _, p := range export.Presets() {
		fmt.Fprintf(&b, "  %-6s %s\n", p.Target, p)
	}
	return b.String()
}

const fp8Topic = `--act fp8 of eval-ppl, generate and bench rounds both sides of products by
quantized weights to E4M3, 8 bits with 3 of mantissa: activations with a scale
for each token, a 448th of its largest magnitude, and the values of a table with
a factor for each table, with which NF4 loses nothing. Scales of groups stay as
they are. It is for products of 17 rows and more, as of prompts and batches, by
codes of a table in groups of 64, 128, 256 or a row; others are multiplied as
ever, and it is never the default.

Each product is off by 2.4 to 2.7 % more (root mean square), whatever the
activations; squared, that is a twelfth of what weights of 4 bits are off by,
and a fiftieth at 3 bits. With MODEL itself as --against eval-ppl tells what
becomes of it in a model.

On a Hopper GPU, whose tensor cores multiply E4M3, there are kernels for it. As
they change results they are taken wherever there is one, also where 16 bits are
faster: what was timed before decides nothing but which kernel of either. Bench
times both, in a row each; on an H200 E4M3 was 0.93 to 1.13 times as fast, by
the shape and the rows. It holds results against the same roundings ("rel err"),
and "table err" is what these change. The cpu rounds alike and multiplies in
float32: it is no faster, and tells what it costs.
`

const timingTopic = `Products on the cpu: weights rotate through copies of eight times the last cache
(--cache), or a quarter of the memory that is free, so that they come from
memory as in a model. Reading as many bytes and products by dense float32
weights are timed in five turns with them, the best counting: fewer where a row
would take more than its share of --limit, none when that is over; both is said.

Products on cuda: kernels are compiled and tuned first, by shape and ranges of
M, up to a minute for each, and kept in the cache folder; with --no-tune they
are what was found before, or chosen by rule. Weights rotate through a ring of
four times the level-2 cache (of 4096 copies, where they are too small for
that), and graphs of at least 64 calls are timed in turns, the median counting:
the product; the fastest kernel that only reads the same bytes, launched alike;
and cuBLAS with dense weights of the type of X. Layers of MODEL with one shape
and format make one row, timed over all of them. The table is rounded to the
type of X, which "rel err" takes as given; "table err" is what that changes in
the result. More than 16 rows are multiplied as is found to be the fastest, by
eval-ppl too: by a kernel for each 16 or 32, by weights unpacked first and
cuBLAS, or by one for all, of X as the step before writes it (else "prepare us"
comes to it).

With --kind bcq random weights are binary codes, of 1 to 8 bits. By --kernel
planes their bits are multiplied on tensor cores, as those of models are; by
gather:full and gather:half, for comparison, bytes of them look up tables of
eight activations, or halves of such tables, as LUT-GEMM has it. With --kind
lut24 two of every four columns are kept (lutq help sparse): dense on the cpu.

--selftest runs every pair of what kernels are compiled for, =all all, =3/4 a
share, =sources each source. --summary times all shapes of MODELs, 2 to 5 bits.

With AVX2 but not AVX-512 there are two kernels, lut-avx2 in float32 and
fixed-avx2 in fixed point, of which models use the latter unless by --exact.

--roofline OUT also measures what the device reads at most, and multiplies by
dense weights (in 16 bits by cuBLAS, on the cpu by the float32 kernel), and sets
each product below these roofs: a table, roofline.csv, and a picture of it,
roofline.svg, over the operations for each byte of codes, scales, X and Y.

Whole models (bench MODEL --decode), by tests as llama-bench calls them:
  ppN    a prompt of N random tokens, and the choice of what follows
  tgN    N tokens one by one behind a single one: the most likely each time,
         chosen on the device and handed to the host before the next
  @dN    behind either: after a text of N tokens
  evalN  a window of N tokens as eval-ppl --against evaluates it, here against
         the model itself, whose own time does not count

  lutq bench config.json --decode --bits 4,3 --tests pp512,tg128@d4096 --batch 1,16

Texts (--batch) are written side by side, tokens a second being those of all;
prompts are read one after another and timed alone. The median of three
repetitions counts, after one that does not. A star: more than 10 % apart.

The weights of a config.json, or of a folder with no more than that, are random,
with layers in each of --bits and in groups of --group (there 64 by default), as
quantize makes them; embedding and head have 16 bits, or the head --head-bits,
which the embedding has then as well where they are one. Speed does not depend
on their values, but for experts, which are met evenly.

Where no --tests are named they are pp512 and tg128, for one text, and on cuda
pp512, pp2048, tg128 and tg128@d4096, for 1, 4, 16 and 64.

Beside them stands the same model with dense weights: --against names those of a
quantized MODEL's original, else they are random and have 16 bits. What is too
long for a model or too large for the memory is told in a line and left out.

"MB/token" is the least that is read for a token: the weights once a step, and
the keys and values that the token sees. All texts take a step together, on the
cpu up to eight. "read ratio" is the part of the device's read rate that this
comes to: on the cpu of a pool larger than the caches, on cuda of the fastest
kernel that only reads packed weights in that run; of weights in a cache it says
nothing. "GPU GB" is what a model and its tests have taken of the GPU's memory,
"dense GB" the same with dense weights.`

const formatsTopic = `Codebooks (--codebook). Where none is named it is auto with searched scales.
  auto       js, or nf for layers that read channels far larger than others:
             what errs less on some rows, columns counting as their inputs do
             on a method's text, or else by the weights that write these
  nf         NormalFloat: quantiles of a normal distribution
  int        equal steps
  fp         small floating point: e2m1 at 4 bits
  kbit       normal quantiles without a zero
  jt, js     fitted to normal weights together with the scale, which js lets be
             negative: the smallest squared error, but no zero, see auto
  q2 … q5    integers of so many bits as they are, such as -8 to 7
  sym        the same at any width with MARLIN's scales, positive: more error
  iq4nl      the 4-bit table of llama.cpp's IQ4_NL, -127 to 113
  e2m1       fp at 4 bits as it is, up to 6: what NVFP4 and MXFP4 hold
  file:PATH  2^bits ascending numbers in a JSON array

Tables from q2 on but sym have one width, not to be named. They hold numbers
of formats that other programs read, so that "lutq export" can take over codes
and scales as they are. --for names such a format; other flags may choose among
what it holds. Any method goes with it. It sets

@presets

Methods (--method): rtn rounds to the nearest table value; gptq rounds so that
errors make up for each other on a text; nfl is the codebook nf with learned
scales; bcq stores binary codes; sparsegpt, wanda and magnitude keep two weights
of four (lutq help sparse); bnb-kbit is what --kbit-encode bnb sets.

Binary codes (--method bcq) have no table: with 1 to 8 bits a group of columns
has an offset and a factor for each bit, which is added or taken off. Factors
and codes are fitted in turns (--bcq-rounds). They take 16 bits for each bit and
offset of a group: at equal size a table with its one scale has less error from
2 to 5 bits and on a GPU takes less time, half from 3 rows on. They are for 1, 6
to 8 bits, and to compare (lutq help tables). Scales cannot be learned then.

Scales (--scale): absmax keeps a group's largest weight exact (sym cuts half a
step), mse searches the scale with the smallest squared error: the default for
auto, jt, js, q2 to q5, sym, iq4nl, e2m1, and before scales are learned in mode
lutq. They are stored in 16 bits, 32, or a byte: e4m4, without sign, s1e4m3, or
e8m0, a power of two as MXFP4 has it.

Exceptions (--tensor, repeatable) for the tensors whose name matches are
REGEX=bits:group:codebook:scale:scale-type:kind:method with any field left out,
or REGEX=keep. The kind is lut, bcq or lut24. Later ones win. A pattern
that matches nothing is an error.

  lutq quantize MODEL OUT --bits 3 --tensor 'down_proj=4' --tensor 'layers\.0\.=keep'

Runtimes store q, k and v of a layer, and its gate and up, as one matrix: they
have the same bits, group and kind unless --split-fused is given.

Sources. What others quantized is decoded when it is read, here and by every
other command: FP8 with scales for blocks, rows or whole layers, MXFP4 of
gpt-oss, integers, NVFP4 and MXFP4 of compressed-tensors, GPTQ (both versions,
reordered columns too), AWQ (gemm), bitsandbytes in 4 bits, MLX, NVFP4 of Model
Optimizer. What is kept of it is written as float32, or as 16 bits of MXFP4.
Without loss "lutq import" takes over what has a form here.

The output. Work is done in OUT.partial and appears under OUT when it is
finished and has been read back. Interrupted or killed, the same command goes on
where it stopped. An OUT that exists stays until then, and is replaced only with
--force and if lutq wrote all that is in it, which its file .lutq lists. OUT may
not be, contain or lie in MODEL or another input. The SHA-256 printed covers
everything quantized.`

const layoutsTopic = `With these names for --target repack writes layers as other programs' kernels
read them, and with --from reads them back. Both ways are exact: every weight is
the same number, and what was read and is written again has the same bytes. A
layer that a layout cannot hold so is refused with the reason; "lutq export" has
formats that round, and programs that open a whole model.

  marlin  MARLIN: integers of 4 bits times a scale of 16 bits for 128 columns
          or a row; rows a multiple of 256, columns of 128. P.B and P.s, with
          AutoGPTQ's config.json. For MARLIN, older vLLM and kernels made after
          it. Not for other tables, nor to be fast here, where tiles of any
          table are
  marlin24  Sparse-MARLIN: the same with two of four columns, P.B_24, P.B_meta
          and P.s as vLLM's gptq_marlin_24 has them. For that kernel. Read it
          is dense, of kind lut; repack --to lut24 makes it sparse again, and
          the bytes are the same if no weight that was kept is 0

  kbit    bitsandbytes' k-bit kernels: any table of 2 to 5 bits as bit planes of
          32 weights, with a scale of E4M4 (other types become F32) for each;
          columns a multiple of 32. P.kbit_packed, P.kbit_absmax and
          P.kbit_codebook. To hand weights to these kernels or compare with
          them; not to be fast here
  kbit-tiled
          the same in tiles of 128 rows and 64 columns, for whole ones. quantize
          --kbit-encode bnb makes codes and scales for both that are to the bit
          what bitsandbytes' encoder makes of MODEL: to compare with it or for
          what was tuned with it. Without, with --codebook kbit --group 32
          --scale-type e4m4, the error is less, by 0 to 3 % at 2 to 5 bits, and
          weights of 32 and more are no trouble
  lutgemm LUT-GEMM: binary codes of --method bcq or repack --to bcq, f16, a word
          for 32 columns of a plane; rows even, columns and groups a multiple of
          32. P.bWeight, P.alpha and P.q_bias. For that kernel and those made
          after it; not to be fast here, nor where a table will do

  lutq quantize MODEL q4 --codebook q4 --group 128 --scale-type f16
  lutq repack q4 OUT --target marlin
  lutq repack OUT back --from marlin`

const sparseTopic = `2:4 sparse weights (kind lut24) have codes for two of every four columns of a
row, in any table, and exact zeros in the other two. Methods choose which:

  magnitude  the largest: needs no text
  wanda      the largest where columns count as their inputs do on a text
  sparsegpt  chooses and rounds one column after the other so that errors make
             up for each other on a text: the best of the three, with --damp
             and --retarget as gptq has them

  lutq quantize MODEL OUT --bits 4 --group 128 --method sparsegpt --calib wiki.txt

The table is js or nf where none is named, as for other weights.
Columns and groups are multiples of 4. Scales cannot be learned. "lutq repack
--target marlin24" writes those of the codebook q4 for Sparse-MARLIN, --to lut
those of tables with a 0 as dense codes. As such "lutq export" takes these too,
to whatever holds their table: q4 to ct, gguf, gptq, awq and mlx; dense holds
all. No format of export has the pattern.

When to use it: 4 bits take 3 bits a weight, two codes and a pattern for four,
and scales. Dense weights of 3 bits (--method gptq --bits 3) take the same bytes
and lose far less: on a Llama of 11 M parameters, groups of 128, fitted to 64
windows of 512 tokens of WikiText-2's validation text, the divergence from it on
40 of the test text is 1.33 with magnitude, 1.27 with wanda, 0.52 with sparsegpt
and 0.15 with dense 3 bits.
A GPU multiplies one text's token by them as they are, by its sparse tensor
cores, in groups of 64, 128, 256 or a row and with scales of 16 bits or less: on
an H200 1.1 to 1.3 times as fast as by dense 4 bits, 8 texts 0.9 to 1.3 times,
16 texts 0.7 to 1.1 times. For more rows of X it has kernels as well, at
28672x4096 1.2 to 1.5 times as fast for 32 to 1024 rows; where they are slower
weights are unpacked. The cpu multiplies by dense weights. It is for models that
were trained or pruned 2:4 before, whose zeros it keeps, and to compare.`

const learningTopic = `Weights can be fitted to windows of one or more text files (--calib), which give
an equal part each. Texts in several styles serve better than more of one. Of a
file of JSON lines (FILE.jsonl), {"text": …} each, no window goes beyond the end
of a text, and those shorter than --calib-ctx are windows of their own length.

--method gptq takes the windows through the model one block at a time. It rounds
the columns of a layer one after the other, each making up for the errors before
it on what the layer reads. --damp keeps that from following the text too
closely. --retarget is how far weights go to make up for the errors of the
layers before, from 0 to 1. A layer or expert that reads too little is rounded
to nearest, which the report counts.

  lutq quantize MODEL OUT --bits 3 --method gptq --calib wiki.txt --calib books.txt

With --learn, after any method, or --method nfl, which is rtn and the codebook
nf, the scales of all layers are refined together by gradient descent. The
windows held out tell how that went, and the state that does best on them is
kept.

Ways to learn (--learn-mode):
  lutq   logarithms of scales, codes that stay as they are, divergence from the
         original model, from searched scales (--scale absmax is the other
         beginning)
  flute  what FLUTE's code does: codes chosen anew at every step, likelihood of
         the text, a constant rate, the last state, no windows drawn but the
         first ones of a text after BOS. With --learn-params bf16 as published

The loss (--learn-objective): kl, the divergence from MODEL, is that of mode
lutq; nll, the negative log-likelihood of the text, that of flute.

The rate (--learn-rate) of mode lutq follows the bits: 0.016 for 2, 0.006 for 3,
0.003 above; that of flute is 1e-4.

The gradient (--learn-grad): ste holds codes fixed, lsq lets them move with the
scale. With --learn-recode N codes are chosen anew every N steps. --learn-table
learns the tables as well, in mode lutq.

--learn-control writes the control of an experiment instead: MODEL with its
weights multiplied by as many learned factors as there would be scales, not
quantized. What it gains on a text is not the repair of quantization.

The same seed, text and device give the same bytes. What was interrupted goes on
where it stopped, gptq at the block.`

const tablesTopic = `Weights that are sums of bits times factors can be multiplied by without
multiplying: four activations have 16 sums with all signs, a table, of which
four bits of a weight's plane choose one. Weights of binary codes (--method bcq)
are such sums, and tables of equal steps (q2 to q5, repack --to bcq). A codebook
such as nf with b bits would take 2^b - 1 planes and gains nothing.

What lutq runs, on the cpu, and measures:
  up to six rows of X by binary codes, with entries of 24 bits, as exact as
  float32 sums: generate, eval-ppl, bench --kind bcq
  eval-ppl and generate with --act-table: entries of 16 bits (fp16) or of 8 with
  a scale for each T tables (int8:T), as LUT Tensor Core (ISCA 2025) keeps them,
  to find out what that rounding does to a model
  bench --kind bcq has both kernels, the latter as int8-avx512, int8-avx2 or
  int8-generic, with T = 16 and an error of up to 2 %

Tables are made once for all layers that read the same, by the norm that writes
what they are of where there is one: four times a block, and where a long window
goes through the MLP in parts of 512 tokens once more for each further part: at
2048 tokens seven times. With --act-table lutq
counts them, what the norms saved reading, and how often they would be made if
each tile of 64 outputs made its own. Half of a table is the other half's
negative: bytes are counted of halves, which hardware would keep. A processor's
shuffle takes 16 entries in one instruction, so that there they are whole.

When to use what: at equal bytes a codebook has less error than binary codes,
and more than 16 rows of X are multiplied faster by weights unpacked first. With
AVX2 alone and 4 bits, a row by binary codes is about twice as fast as by a
codebook in float32, and half as fast as by one in fixed point.

What lutq does not run is the paper's hardware: its instruction is simulated
(lutq lmma), which tells what it computes and counts but no time, and its areas
are added up from formulas (lutq dse). Of the paper itself, by simulated
hardware that nobody has built: 8.2 times end to end, 72.2 times for a product,
a sixth of the area and a quarter of the power. Those figures are the paper's.`

const environmentTopic = `Lutq reads these environment variables:

  LUTQ_ISA        instruction set of the processor's kernels: avx512, avx2 or
                  generic (default the best that the processor has)
  LUTQ_CUDA_PATH  folders with CUDA libraries, looked into before all others;
                  separated by colons
  VIRTUAL_ENV, CONDA_PREFIX
                  Python environments, whose CUDA packages are found too
  XDG_CACHE_HOME  where caches lie: compiled kernels in lutq/kernels, tiles in
                  lutq/tiles (default $HOME/.cache; on macOS always
                  $HOME/Library/Caches). Both can be deleted. A folder that
                  another user could write is not used
  HOME            the user's folder: the default above, and Python packages
                  that were installed for the user
  TMPDIR          where caches lie if neither of these is set

Lutq's own tests also read LUTQ_PTXAS, the path of NVIDIA's assembler. What of
this is in force on a machine lutq doctor tells.`
