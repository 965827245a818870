package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/quantize/preset"
)

// topic is a text that "lutq help NAME" prints and that no command does.
type topic struct {
	name, short string
	page        string // the command in whose manual page it stands
	group       string // of the list of topics: researchTitle or none
	long        string
}

func topics() []topic {
	formats := strings.Replace(formatsTopic, "@presets\n", presetLines(), 1)
	return []topic{
		{"presets", "The recipes that --preset names", "quantize", "", strings.Replace(presetsTopic, "@recipes\n", recipeLines(), 1)},
		{"formats", "Codebooks, scales, exceptions, and models that lutq reads", "quantize", "", formats},
		{"mixing", "Widths that differ by layer: --bits 3.25, --size, --fit", "quantize", "", mixTopic},
		{"methods", "How quantize chooses codes", "quantize", "", methodsTopic},
		{"learning", "How quantize fits weights to text", "quantize", "", learningTopic},
		{"cluster", "Layers made by many machines: --part and --merge", "quantize", "", clusterTopic},
		{"sparse", "How quantize keeps two weights of four", "quantize", "", sparseTopic},
		{"layouts", "Other kernels' layouts, which repack writes and reads", "repack", "", layoutsTopic},
		{"fp8", "What --act fp8 rounds, and what it costs", "eval-ppl", "", fp8Topic},
		{"timing", "How bench times products", "bench", "", timingTopic},
		{"decode", "How bench --decode times whole models", "bench", "", decodeTopic},
		{"names", "Models by their names on the Hugging Face hub", "lutq", "", namesTopic},
		{"environment", "The environment variables that lutq reads", "lutq", "", environmentTopic},
		{"research", "Flags that answer questions of research", "lutq", researchTitle, researchTopic},
		{"tables", "Products through tables of activations, and LUT Tensor Core", "eval-ppl", researchTitle, tablesTopic},
	}
}

// newTopics returns the topics as commands that do nothing else.
func newTopics() []*cobra.Command {
	var all []*cobra.Command
	for _, t := range topics() {
		all = append(all, &cobra.Command{Use: t.name, GroupID: t.group, Short: t.short, Long: t.long})
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

// recipeLines says what each preset makes of each width.
func recipeLines() string {
	var b strings.Builder
	last := ""
	for _, r := range preset.Recipes() {
		from := "up to"
		name := r.Preset
		if name == last {
			name = ""
		}
		last = r.Preset
		fmt.Fprintf(&b, "  %-5s %s %-4s %v\n", name, from, strconv.FormatFloat(r.Most, 'g', -1, 64), r)
	}
	return b.String()
}

const presetsTopic = `A preset is a recipe by one word. By the bits of a code it says:

@recipes

fast reads no text. good takes some minutes for what a machine can hold, and is
what quantize does where no flag says how: where it would take longer than ten
minutes by the plan's own estimate, or where no text can be run through a model,
that is fast, and a line says so. best has the least divergence at a size. Its
codes are decoded by lutq and by transformers; products of few rows take 1.4 to
1.8 times as long as by tables on a GPU. Other programs' formats have tables:
see --for and export.

Flags override a part: --preset best --codebook js keeps a table, --preset best
--learn=false spends no time on learning. --group and --scale are of tables.
The text is --calib's, else the bundled one. For best half of it is what the
model writes itself (--calib self), which leaves 5 to 13 % less. What a preset
chose is in OUT's config.json, as flags.
`

const formatsTopic = `A quantized weight is a code of --bits bits. The code chooses one of 2^bits
numbers from a table, the codebook. The weight is that number times a scale,
which --group neighbouring columns of a row share.

Codebooks (--codebook):
  auto       the default: js or nf, whichever errs less on a layer. Where there
             is a text (--calib), columns count as their inputs do on it
  nf         NormalFloat: quantiles of a normal distribution
  int        equal steps
  fp         small floating point numbers: e2m1 at 4 bits
  kbit       quantiles of a normal distribution, without a zero
  jt, js     fitted to normal weights together with the scale; the scale of js
             may be negative. They have the smallest squared error, but no zero:
             layers whose inputs differ much in size need one
  q2 … q5    whole numbers of 2 to 5 bits, such as -8 to 7 for q4
  sym        the same of any width, with positive scales as MARLIN has them. The
             error is larger
  iq4nl      the 4-bit table of llama.cpp's IQ4_NL, -127 to 113
  e2m1       fp at 4 bits with values up to 6, as NVFP4 and MXFP4 have them
  file:PATH  2^bits ascending numbers in a JSON array
  trellis    no table of weights by themselves: a code is a window on a ring of
             bits, which its neighbours share, of rotated weights. It has the
             least error at 1 to 6 bits and half bits, as --bits 2.5, and one
             scale a row
  mul1, mcg, 3inst
             the rings of EXL3, at 1 to 8 bits, mul1 at 1.5, 2.5 and 3.5: for
             other programs (--for exl3). Rows are rotated too. exl3 is mul1

Tables q2 to q5, iq4nl and e2m1 have one width, so --bits can be left out. They
are those of other programs' formats: "lutq export" copies their codes and
scales without loss. --for TARGET sets what export --to TARGET can copy:

@presets

Other flags may choose among what the target can hold. Any method goes with it.

Scales (--scale):
  absmax  makes the largest weight of a group exact (sym: half a step off)
  mse     searches the scale with the smallest squared error. It is the default,
          but for --method nfl --learn-mode flute, which begins with absmax
--scale-type stores a scale in 32 bits (f32), 16 (f16, bf16) or 8: e4m4 has no
sign, s1e4m3 has one, and e8m0 is a power of two, as MXFP4 has it.

Exceptions (--tensor, repeatable) set the format of tensors whose name matches:
REGEX=bits:group:codebook:scale:scale-type:kind:method. Any field may be left
out. REGEX=keep leaves the tensors as they are. The kind is lut (a table), bcq
(binary codes), lut24 (2:4 sparse) or trellis; see "lutq help methods". Later
rules win. A pattern that matches nothing is an error.

  lutq quantize MODEL OUT --bits 3 --tensor 'down_proj=4' --tensor 'layers\.0\.=keep'

Runtimes store the q, k and v of a layer as one matrix, and its gate and up as
another. So they get the same bits, group and kind unless --split-fused is set.

Sources. Every command reads models that other programs quantized, and decodes
them: FP8 (scales for blocks, rows or layers), gpt-oss's MXFP4, GPTQ, AWQ
(gemm), EXL3, bitsandbytes in 4 bits, MLX, Model Optimizer's NVFP4, and the
integers, NVFP4 and MXFP4 of compressed-tensors. quantize writes the tensors
that it keeps of them as float32, MXFP4 in 16 bits. "lutq import" copies codes
without loss.`

const methodsTopic = `A method (--method) chooses the codes of a layer. These need no text:

  rtn        rounds each weight to the nearest value: the default
  bcq        stores binary codes in place of a table
  magnitude  keeps the two largest of four weights (lutq help sparse)
  bnb-kbit   makes the codes of bitsandbytes' k-bit encoder; --kbit-encode bnb
             sets it (lutq help research)

These fit the codes to a text (--calib, lutq help learning):

  gptq       rounds column by column. Each column makes up for the errors of
             those before it
  wanda, sparsegpt
             keep two of four weights (lutq help sparse)
  nfl        rtn with codebook nf, then learned scales

--learn refines the scales after rtn or gptq.

--transform awq multiplies columns of layers by factors first, so that those of
large inputs lose less, and divides what the layers read by them: in norms, and
in rows of the layers before. The text says by what. The model stays one of its
family, and computes the same but for what is rounded.

Binary codes (--method bcq, weights of kind bcq). A weight of b bits is a sum:
each bit adds or subtracts a factor, and an offset may be added. A group of
columns has b factors of its own, and an offset unless --bcq-offset=false. Codes
and factors are fitted in turns, --bcq-rounds of them.

When to use them: for widths that tables do not have, 1 and 6 to 8 bits. From 2
to 5 bits a table is better: it has less error at the same size, because it
stores one scale for a group and not b + 1 numbers, and a GPU multiplies by it
faster, about twice from 3 rows of activations on. Learned scales are not for
binary codes.`

const clusterTopic = `Several processes can make a model's layers, on machines that share a folder and
nothing else. Each makes a part, and one puts the parts together:

  lutq quantize MODEL OUT --preset fast --part 1/3
  lutq quantize MODEL OUT --preset fast --part 2/3
  lutq quantize MODEL OUT --preset fast --part 3/3
  lutq quantize MODEL OUT --preset fast --merge

OUT is the same to the byte as what the command makes without --part and
--merge, and so is its sha256.

Parts come in any order. They have layers of about as many bytes each; experts
that a model stores in one tensor are layers of their own. --part 0/3 is
--part 3/3, for schedulers that count from 0. A part whose process died is made
by the same command, which goes on where that stopped; so is one that was begun
twice. Who comes later may also take another number of parts: 1/2 makes what is
left of the first half.

--merge needs OUT.parts, MODEL's other tensors, and room for OUT. Where parts
are not finished it says which, writes nothing, and its exit code is 3. So is it
where a file is not as it was written: that is then made anew by its part.
Other options, another model, and another build of lutq are refused.

What can be divided: everything that takes no text, at once. Methods with a text
(gptq, wanda, sparsegpt) fit a layer to what the layers before it make of the
text, which are other parts'. With

  --stream float

the text runs through the original model, and no layer depends on another. That
leaves 12 to 31 % more divergence than without it, and 22 to 37 % less than
rounding (quantize/gptq/NOTES.md): errors of the layers before are not made up
for. Parts share the way to their first blocks: each takes some windows of the
text as far as any part begins, and leaves what they are there in OUT.parts. On
a CPU four parts at once take 36 % of the time of one process, and eight 20 %.
All parts name the same --device; --merge names it too, and does not use it.
Learned scales, --transform and texts that the model writes are of a whole
model, and refused. So are mixed bits, which --dry-run --json mixes once: what
it prints as "recipe" is a file that parts take by --recipe. Where no preset or
method is named, which one it is depends on a machine's speed: --part wants one.

What OUT.parts holds: NNNN.bin, the bytes of some layers, and NNNN.json, which
says what they are and is written after them. states-*, 4 bytes for each number
of a hidden state, each token and each part but the first (16 GB for 8B in four
parts; as much as MODEL at most, or 8 GB), go with the last part. A process
writes a file under a name of its own, .NAME.X, and renames it. There are no
locks, and no time of a file is looked at, so clocks may differ. What is asked
of the file system:

  - a file that was closed and renamed is seen whole by who opens it after, as
    NFS, Lustre, GPFS and CephFS promise, and mounts of buckets that write when
    a file is closed (gcsfuse, JuiceFS, s3fs, rclone --vfs-cache-mode writes).
    A rename may be a copy: one that was cut short is noticed, and made anew
  - a file can be written at any place while it is open. Mounts that only append
    (Mountpoint for S3) cannot hold OUT.parts
  - where there are no locks, one process at a time merges

scripts/cluster has a Slurm array and a Kubernetes Job that do all this.`

const learningTopic = `Some methods fit weights to text. --calib says which, and may be repeated: each
text gives an equal share of the windows. Several styles of text serve better
than more of one.
  bundled  where none is named: prose in many languages, chats, code, maths and
           web pages, which the program holds. Chats are as the model's chat
           template has them
  self     what MODEL writes itself at temperature 1, or as self:0.7: answers to
           users of the bundled chats if it has a chat template, else texts from
           their first token on. They are kept for the next run (lutq help
           environment)
  FILE     a text file; ./bundled is one of that name. FILE.jsonl holds one text
           a line, {"text": …}: a window never spans two of them, and may be
           shorter than --calib-ctx tokens
Of these, bundled and self together did best on texts that are in neither.
Without --calib-windows, layers are fitted to 64 tokens for each column of the
widest, in 32 to 128 windows, and scales are learned by 128.

Where the tokenizer puts BOS before a text, half of the windows begin with it:
models read texts from their beginning and from the middle. --calib-bos window
puts it before each, as lutq did until 2026-11-25 (commands recorded then do not
say so), and --calib-bos none before none.

GPTQ (--method gptq) runs the windows through the model block by block. It
rounds a layer column by column. Each column changes to make up for the errors
of those before it, as far as the inputs of the layer tell:
  --damp SHARE      GPTQ sums the products of every two inputs in a matrix H,
                    and adds SHARE of the mean of its diagonal to the diagonal
                    (default 0.1). More follows the text less closely
  --retarget SHARE  how far weights also make up for the errors of the layers
                    before, from 0 to 1 (default 0.5)
  --rescale=false   leaves scales of tables as they are found beforehand. Else
                    groups up to 128 choose theirs anew (not on a GPU). Commands
                    that do not say are from before 2026-11-25, and did not
A layer or expert that reads too few tokens is rounded to nearest. The report
counts these.

  lutq quantize MODEL OUT --bits 3 --method gptq --calib bundled --calib mine.txt

Learned scales (--learn after rtn or gptq, or --method nfl) refine the scales of
all layers together by gradient descent on the text. --valid-windows more
windows are held out to measure progress, and the best state on them is kept.
  --learn-mode lutq   learns the logarithm of each scale and keeps the codes. It
                      begins with searched scales; --scale absmax begins with
                      those of the largest weight
  --learn-mode flute  does what FLUTE's code does: it chooses codes anew at
                      every step, takes a text's first windows after BOS in
                      order, and keeps the last state. --learn-params bf16 is as
                      published
  --learn-objective   kl: the divergence from MODEL, in mode lutq the default;
                      nll: the text's negative log-likelihood, in mode flute
  --learn-rate        in mode lutq 0.016 at 2 bits, 0.006 at 3 and 0.003 above,
                      a fourth of that after gptq from 3 bits on (since
                      2026-11-25), an eighth for kind trellis; 1e-4 in flute
  --learn-grad        ste: the gradient holds codes fixed; lsq: codes move with
                      the scale
  --learn-recode N    chooses codes anew every N steps
  --learn-table       learns the tables too (mode lutq)
Of kind trellis the scales of rows are learned, in mode lutq, and codes and
tables stay. Kinds bcq and lut24 are not learned.

--devices 0,1 divides windows and rows among GPUs: of learning those of a step
(--learn-batch). The same seed, text and kind of device give the same bytes,
except of many experts on several GPUs. An interrupted run goes on where it
stopped, GPTQ at the block.`

const sparseTopic = `A 2:4 sparse layer (kind lut24) keeps two of every four columns of a row. The
two have codes of a table; the other two are exactly 0. The method chooses
which:

  magnitude  keeps the two largest: needs no text
  wanda      weighs each weight by the size of its inputs on a text
  sparsegpt  chooses and rounds column by column; later columns make up for the
             errors of earlier ones, as in gptq. The best of the three. --damp
             and --retarget are for it too

  lutq quantize MODEL OUT --bits 4 --group 128 --method sparsegpt --calib wiki.txt

Where no table is named it is js or nf, as for other weights. The columns of a
layer and --group must be multiples of 4. Scales cannot be learned.

Other forms. "lutq repack --target marlin24" writes layers of codebook q4 for
Sparse-MARLIN. "lutq repack --to lut" writes layers whose table has a 0 as dense
codes. "lutq export" stores dense codes too, wherever a format has the table: q4
goes to ct, gguf, gptq, awq and mlx; dense takes all. No export format stores
the pattern.

When to use it: for models that were trained or pruned 2:4 before, and to
compare. 4-bit codes take 3 bits a weight: two codes and a 4-bit pattern for
four weights. Dense weights of 3 bits (--method gptq --bits 3) take as much and
lose far less. On a Llama of 11 M parameters (groups of 128, 64 windows of 512
tokens of WikiText-2's validation text) the divergence from the original on 40
windows of the test text was 1.33 with magnitude, 1.27 with wanda, 0.52 with
sparsegpt and 0.15 with dense 3 bits.

Speed. A GPU's sparse tensor cores multiply by these layers in groups of 64,
128, 256 or a row and with scales of 16 bits or less. Beside dense 4 bits an
H200 was 1.1 to 1.3 times as fast for one row of activations, 0.9 to 1.3 times
for 8 and 0.7 to 1.1 times for 16. For 32 to 1024 rows kernels were 1.2 to 1.5
times as fast at 28672x4096; where they are slower, weights are unpacked first.
The cpu multiplies by dense weights.`

const layoutsTopic = `"lutq repack MODEL OUT --target NAME" writes the layers of MODEL as another
program's kernels read them. "lutq repack OUT MODEL --from NAME" reads them
back. Both ways are exact: every weight stays the same number, and reading and
writing again gives the same bytes. A layer that a layout cannot hold is
refused, with the reason. For formats that round, or that whole programs open,
see "lutq export".

  marlin      MARLIN: integers of 4 bits times a scale of 16 bits for 128
              columns or a row. Rows are a multiple of 256, columns of 128.
              Tensors P.B and P.s, with AutoGPTQ's config.json. For MARLIN,
              older vLLM and kernels made after it
  marlin24    Sparse-MARLIN: the same with two of four columns. Tensors P.B_24,
              P.B_meta and P.s, as vLLM's gptq_marlin_24 has them. It is read
              back as dense weights (kind lut). repack --to lut24 makes them
              sparse again, with the same bytes if no kept weight is 0
  kbit        bitsandbytes' k-bit kernels: any table of 2 to 5 bits, as bit
              planes of 32 weights with a scale each, in E4M4 (other types
              become F32). Columns are a multiple of 32. Tensors P.kbit_packed,
              P.kbit_absmax and P.kbit_codebook
  kbit-tiled  the same in tiles of 128 rows and 64 columns; rows and columns are
              multiples of these
  lutgemm     LUT-GEMM: binary codes (--method bcq, or repack --to bcq) with
              factors in f16. A word holds 32 columns of a plane. Rows are even,
              columns and groups a multiple of 32. Tensors P.bWeight, P.alpha
              and P.q_bias

  lutq quantize MODEL q4 --codebook q4 --group 128 --scale-type f16
  lutq repack q4 OUT --target marlin
  lutq repack OUT back --from marlin

When to use them: to hand weights to these kernels, to kernels made after them,
or to compare with them. Lutq itself is not faster by them: its own tiles
(--target cpu or cuda) hold any table.

For the k-bit layouts, quantize with --codebook kbit --group 32 --scale-type
e4m4. The other way is --kbit-encode bnb (lutq help research): its error is up
to 3 % larger, and it stores scales of 32 and more wrongly.`

const fp8Topic = `--act fp8 multiplies in E4M3, an 8-bit floating point number. It rounds both
sides of a product, and is never the default. Activations get a scale for each
token. What becomes of weights hangs on the rows of activations:

  17 to 255   the codebook is rounded, with one factor for the table (nf loses
              nothing by that). The scales of groups stay as they are
  256 and up  weights are folded: each product of a table value and the scale of
              its group is rounded once to E4M3 times a scale of its row. So a
              GPU multiplies with nothing in between. Of 32 scales of a row the
              one is taken that leaves the least error

Products of fewer rows do not change, nor do those by layers without a codebook
in groups of 64, 128, 256 or a row. Layers whose rows or columns are no multiple
of 16 are not folded.

Exact weights. Folding loses nothing where E4M3 has the table times a factor (as
q4 and e2m1) and the scales of a row are powers of two apart: in groups of a row
(--group row) or with --scale-type e8m0. Those recipes lose more than folding
does: quantize for --act fp8 as for anything else.

Quality. Activations get 2.4 to 2.7 % more error (root mean square), and folded
weights 2.2 to 2.6 %. Squared, each is a twelfth of the error that 4-bit weights
have, and a fiftieth at 3 bits. The Llama of 11 M parameters loses .0065 nats to
it on books, .004 by activations alone, where 4 bits lose .028. To measure it:

  lutq eval-ppl OUT --against OUT --act fp8

Speed. Hopper GPUs multiply E4M3 in tensor cores, and cuBLASLt of CUDA 12.9 or
newer by folded weights. --act fp8 always uses those kernels, even where 16 bits
are faster, because they change results. bench --act fp8 times products with 16
bits, in fp8, and with folded weights that are kept, in a row each. "rel err"
compares with the same roundings done in float64; "table err" is the error that
the roundings cause. The cpu rounds alike but multiplies in float32: it is no
faster, and shows the effect on a model.

Memory. Folded weights are a byte each. --prefill-cache says what is kept of
them beside the packed ones, so that prompts, windows and batches need not
unpack them each time:

  auto  with --act fp8 as many layers as leave an eighth of the GPU's memory
        free, in the order in which they are used. No result hangs on it
  on    without fp8 as well: in 16 bits, for cuBLAS, from 256 rows on. Results
        change in the last bits, as weights are rounded where sums were scaled
  off   none

Where memory runs out later, all of it is given back. A line at the end says
what was kept.`

const timingTopic = `How bench times the product Y = X·Ŵᵀ. "lutq help decode" is about whole models.

On the cpu. Weights rotate through copies of eight times the last cache
(--cache), or a quarter of the free memory, so they come from memory as in a
model. Three things are timed in five turns: the product, reading as many bytes,
and products by dense float32 weights. The best turn counts. Each takes --time
at least (300ms). There are fewer turns where a row would take more than its
share of --limit, and no more rows once that is over; bench says so. There are
two kernels, as lut-avx2 in float32 and fixed-avx2 in fixed point, except with
AVX-512 without VNNI. Rings have two where AVX-512 has float16. Models use the
second, or with --exact the first.

On cuda. Kernels are first compiled and tuned for each shape and range of M.
That takes up to a minute each, and is kept in the cache folder. --no-tune takes
what was found before, or a rule's choice. Weights rotate through a ring of four
times the level-2 cache (at most 4096 copies). CUDA graphs of at least 64 calls
are timed in turns: the product; the fastest kernel that only reads the same
bytes, launched alike; and cuBLAS with dense weights of X's type. The median
counts. Layers of MODEL with the same shape and format make one row.

For more than 16 rows of X, bench and eval-ppl take the fastest of three ways: a
kernel for every 16 or 32 rows; unpacking the weights for cuBLAS; or one kernel
for all rows, which reads X in an order that the step before writes. Where no
step does, "prepare us" is the time to add.

Columns:
  read ratio   the time of reading the same bytes over that of the product: 1.00
               is as fast as memory
  dense ratio  how many times faster than dense weights
  rel err      the error, where the table as rounded to X's type is taken as
               true
  table err    the error that rounding the table to X's type adds
  mJ           with --energy, on cuda: the GPU's energy for a product, of one
               called over and over for a second, by the driver's own counter
  dense mJ     the same with dense weights
A star marks a noisy row: the middle half of its timings spans more than 10 % of
the median, or other processes kept the cpu's processors busy.

Random weights. --kind lut has a codebook. --kind bcq has binary codes of 1 to 8
bits. --kind lut24 keeps two of every four columns (lutq help sparse); the cpu
multiplies by them as dense weights.

--selftest runs every pair of what kernels are compiled for, --selftest=all all,
=3/4 a share (here the third quarter), =sources one of each source. --summary
sums up all layer shapes of several MODELs, at 2 to 5 bits.`

const decodeTopic = `"lutq bench MODEL --decode" times whole models. Tests are named as llama-bench
names them:
  ppN    read a prompt of N random tokens, and choose what follows
  tgN    write N tokens one by one after a first one. Each is the most likely,
         chosen on the device and handed to the host before the next
  @dN    behind either: after a text of N tokens
  evalN  evaluate a window of N tokens as eval-ppl --against does, here against
         the model itself, whose own time does not count

  lutq bench config.json --decode --bits 4,3 --tests pp512,tg128@d4096 --batch 1,16

Without --tests they are pp512 and tg128 for one text. On cuda they are pp512,
pp2048, tg128 and tg128@d4096, for 1, 4, 16 and 64 texts.

--batch N writes N texts side by side; tokens a second are those of all. Prompts
are read one after another and timed alone. There is a first repetition that
does not count, then three of which the median counts. A star marks repetitions
more than 10 % apart.

Weights. A quantized MODEL has its own. A config.json, or a folder with no more,
has random weights: a model for each of --bits, in groups of --group (64 by
default here), as quantize would make them. Embedding and output head have 16
bits; --head-bits sets the head's, and the embedding's where both are one
matrix. Speed does not depend on the values of weights, but for experts: random
ones are chosen evenly.

--devices 0,1 shares a model out among GPUs that reach each other's memory: each
has some heads of attention and features of an MLP, and they add up what these
make. It takes attention and MLPs without experts, and as many heads of keys and
values for each; no group of columns may be parted. The read rate is then that
of all. "lutq bench --sums" times sums over GPUs by themselves, beside NCCL's.

Dense weights stand beside them. --against names the folder of a quantized
MODEL's original; else they are random, of 16 bits. A test that is too long for
a model or too large for memory is left out, and a line says so.

Columns:
  MB/token    the least that is read for a token: all weights once a step, and
              the keys and values that the token sees. All texts share a step,
              on the cpu up to eight
  read ratio  the share of the device's read rate that this comes to. The rate
              is that of a pool larger than the caches on the cpu, and that of
              the fastest kernel that only reads packed weights on cuda. It says
              nothing of weights that fit a cache
  GPU GB      GPU memory that the model and its tests took
  dense GB    the same with dense weights
  J/token     with --energy, on cuda: the GPU's energy for a token, of a test
              gone through for two seconds. Tokens of all texts count
  dense J/token  the same with dense weights`

const tablesTopic = `A product can do without multiplications. Take four activations. Their sums with
all choices of signs are 16 numbers, a table. Four bits of a weight's binary
code choose one of them. So a product by binary codes looks up sums and adds
them.

Weights of binary codes (--method bcq) can be multiplied so, and those of tables
with equal steps (q2 to q5, after repack --to bcq). Other codebooks, such as nf,
would take 2^b - 1 planes of bits for b-bit codes, and gain nothing.

What lutq runs and measures, on the cpu:
  - up to six rows of X by binary codes, in generate, eval-ppl and bench --kind
    bcq. Entries of tables have 24 bits: as exact as float32 sums
  - eval-ppl and generate with --act-table fp16 or int8:T. Entries have 16 bits,
    or 8 with a scale for each T tables, as LUT Tensor Core (ISCA 2025) keeps
    them. It tells what that rounding does to a model
  - bench --kind bcq times both. The kernels with 8-bit entries are called
    int8-avx512, int8-avx2 and int8-generic; T is 16 and their error up to 2 %

How often tables are made. Layers that read the same activations share tables.
Where a norm writes the activations, it makes the tables too. That is four times
a block. A long window passes the MLP in parts of 512 tokens, each with tables
of its own: seven times a block at 2048 tokens. --act-table counts the tables,
the reading that norms saved, and how often tables would be made if every tile
of 64 outputs made its own. Half of a table is the other half with its sign
changed: hardware would keep one half, so bytes are counted of halves. A
processor's shuffle instruction takes 16 entries at once, so lutq keeps whole
tables.

When to use it. At the same size a codebook has less error than binary codes.
For more than 16 rows of X it is faster to unpack weights first. With AVX2
alone, at 4 bits and one row, binary codes are about twice as fast as a codebook
in float32 and half as fast as one in fixed point.

What lutq does not run is the paper's hardware. "lutq lmma" simulates its
instruction: results and counts, no time. "lutq dse" adds up its area from
formulas. The paper's own figures come from a simulator of hardware that nobody
has built: 8.2 times faster end to end, 72.2 times for a product, a sixth of the
area, a quarter of the power.`

const researchTopic = `These commands and flags answer questions of research. No model needs them.

A tensor core that multiplies by lookup, as LUT Tensor Core (ISCA 2025) has it:
  lutq dse         sizes of such a core, from formulas
  lutq lmma        a simulation of its instruction
  eval-ppl, generate --act-table fp16|int8:T
                   what rounding its tables does to a model (lutq help tables)

Kernels that lutq compares and does not choose for models:
  bench --kind bcq --kernel gather:full
                   binary codes on a GPU by LUT-GEMM's way: a byte of codes
                   looks up a table of the sums of eight activations.
                   gather:half keeps half of each table. The default, planes,
                   multiplies the bits in tensor cores, as for models
  bench --kind lut24 --kernel mma.sp
                   one kernel for 2:4 sparse weights, also wgmma.sp:c64g4
  bench --lookup NAMES
                   ways to look up the table on a GPU: replicated (each lane of
                   a warp has a copy), copies1 to copies16 (fewer copies),
                   shuffle (each lane has a value), integers (arithmetic, where
                   the table is whole numbers)
  bench --sustain TIME
                   also calls each product over and over for TIME, such as 10s,
                   and tells the rate by seconds: whether a warm GPU keeps it
  bench --roofline OUT
                   measures how fast the device reads and multiplies at most,
                   and draws each product below these roofs: OUT/roofline.csv
                   and OUT/roofline.svg, by operations per byte. With --force it
                   replaces an earlier OUT

Other programs' ways to quantize, step by step:
  quantize --kbit-encode bnb
                   the codes and scales that bitsandbytes' k-bit encoder makes,
                   bit for bit. It sets codebook kbit, groups of 32 and scales
                   in e4m4 (lutq help layouts)
  quantize --learn --learn-mode flute --learn-params bf16
                   learned scales as FLUTE's code publishes them

The control of an experiment:
  quantize --learn --learn-control
                   multiplies MODEL's weights by as many learned factors as
                   there would be scales, and does not quantize. What the
                   factors gain on a text is fitting to that text, not repair of
                   quantization

"lutq COMMAND --help --all" lists the flags.`

const namesTopic = `A MODEL that is no path may be the name of one on the Hugging Face hub:

  lutq quantize Qwen/Qwen3-0.6B OUT               of the main branch
  lutq inspect Qwen/Qwen3-0.6B@refs/pr/1          of a branch, tag or commit
  lutq inspect hf://Qwen/Qwen3-0.6B               never a folder of that name

A folder here comes before a model of the same name. Otherwise the cache that
transformers and other programs use is looked up: what it has is taken as it is,
and the server is not asked whether there is something newer. What it lacks is
downloaded into it, so that they find it too. Of a model, that is config.json
and what else names its settings, the safetensors files, tokenizer and chat
templates, model card, licence and own code. tokenize takes no weights, and
bench none of a model whose shapes it times.

The data of known tasks comes from the hub too, into the same cache:

  lutq eval-tasks MODEL --tasks arc_easy,mmlu

An interrupted download goes on with the same command. Every file is held
against its hash before it gets its name. With --offline nothing is downloaded.

  lutq quantize ORG/NAME OUT --shards-from hub

keeps no weights: it plans by the headers of the files, fetches one, quantizes
its layers and deletes it, while the next one comes. So the disk holds OUT, two
files, and of earlier ones what a layer in several files still needs, or a block
whose tables are chosen (the default; not --codebook nf). OUT has the bytes that
it has from a folder. It is for what takes no text: rtn, bcq. --dry-run tells
what is fetched; where tables are chosen and files do not have layers in their
order, some of it twice. Interrupted, the same command goes on.

  HF_HUB_CACHE    the cache (default hub in HF_HOME)
  HF_HOME         default huggingface in XDG_CACHE_HOME or $HOME/.cache
  HF_ENDPOINT     the server (default https://huggingface.co)
  HF_TOKEN        your token, for models that are not for all (default what the
                  file HF_TOKEN_PATH has, or token in HF_HOME). It is sent to
                  the server alone
  HF_HUB_OFFLINE  1: as --offline
  HTTPS_PROXY     a proxy, as NO_PROXY says where none is used`

const environmentTopic = `Lutq reads these environment variables:

  LUTQ_ISA        instruction set of the processor's kernels: avx512, avx2, neon
                  or generic (default the best that the processor has)
  HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE
                  where models lie that are given by name, and come from: "lutq
                  help names"
  COLUMNS         how wide a terminal is taken to be that tables and lines are
                  fitted to. What is no terminal gets them whole
  NO_COLOR        if set, chat has no colours. Nothing else has, but for the bar
  LUTQ_CUDA_PATH  folders with CUDA libraries, separated by colons. Lutq looks
                  here first
  VIRTUAL_ENV, CONDA_PREFIX
                  Python environments. Lutq finds their CUDA packages too
  XDG_CACHE_HOME  where caches lie: compiled kernels in lutq/kernels, tiles in
                  lutq/tiles, texts of --calib self in lutq/self (default
                  $HOME/.cache; on macOS always $HOME/Library/Caches). All can
                  be deleted. Lutq does not use a folder that another user can
                  write to
  HOME            the user's folder: for the default above, and for Python
                  packages that were installed for the user
  TMPDIR          where caches lie if neither of these is set

Lutq's own tests also read LUTQ_PTXAS, the path of NVIDIA's assembler, and
LUTQ_SHARE, which of eight parts of unchanged kernels' tests to run, 0 to 7
(default by the day). "lutq doctor" tells what of the others is in force.`
