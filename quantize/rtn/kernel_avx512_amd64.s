//go:build !noasm

// AVX-512 F, BW and VL. kernel.go defines what these compute.
//
// Registers that last: AX the table's vectors, Z31 the first threshold, Z30 to
// Z27 the thresholds of decisions 2 to 5, Z26 and Z25 the values, Z24 to Z21
// the bits of an index, K7 the lanes that hold weights.

#include "go_asm.h"
#include "textflag.h"

#define TABLES \
	MOVQ         t+0(FP), AX                       \
	LEAQ         table_vectors(AX), AX             \
	VMOVUPS      vectors_first(AX), Z31            \
	VMOVUPS      vectors_wide(AX), Z30             \
	VMOVUPS      (vectors_wide+64)(AX), Z29        \
	VMOVUPS      (vectors_wide+128)(AX), Z28       \
	VMOVUPS      (vectors_wide+192)(AX), Z27       \
	VMOVUPS      vectors_wideValues(AX), Z26       \
	VMOVUPS      (vectors_wideValues+64)(AX), Z25  \
	MOVL         $8, R11                           \
	VPBROADCASTD R11, Z24                          \
	VPSRLD       $1, Z24, Z23                      \
	VPSRLD       $2, Z24, Z22                      \
	VPSRLD       $3, Z24, Z21

// FINDb leaves the index of x's code in idx and its value in q; comparisons are
// threshold < x. CODEb makes the code of the index.
#define DECIDE(thresholds, bit, x, idx, q, k) \
	VPERMPS thresholds, idx, q \
	VCMPPS  $17, x, q, k       \
	VPORD   bit, idx, k, idx

#define DECIDE2(x, idx, q, k) \
	VCMPPS      $17, x, Z31, k \
	VMOVDQA32.Z Z24, k, idx    \
	DECIDE(Z30, Z23, x, idx, q, k)

#define DECIDE3(x, idx, q, k) \
	DECIDE2(x, idx, q, k) \
	DECIDE(Z29, Z22, x, idx, q, k)

#define DECIDE4(x, idx, q, k) \
	DECIDE3(x, idx, q, k) \
	DECIDE(Z28, Z21, x, idx, q, k)

#define FIND2(x, idx, q, k) DECIDE2(x, idx, q, k); VPERMPS Z26, idx, q
#define FIND3(x, idx, q, k) DECIDE3(x, idx, q, k); VPERMPS Z26, idx, q
#define FIND4(x, idx, q, k) DECIDE4(x, idx, q, k); VPERMPS Z26, idx, q
#define FIND5(x, idx, q, k) \
	DECIDE4(x, idx, q, k)      \
	VPERMPS Z27, idx, q        \
	VCMPPS  $17, x, q, k       \
	VPERMPS Z26, idx, q        \
	VPERMPS Z25, idx, k, q

#define CODE2(idx, k) VPSRLD $2, idx, idx
#define CODE3(idx, k) VPSRLD $1, idx, idx
#define CODE4(idx, k)
#define CODE5(idx, k) VPADDD idx, idx, idx; VPORD Z21, idx, k, idx

// HALVE leaves a's 16 lanes folded to 8 in the lower half of a, and b's in the
// upper half.
#define HALVE(a, b, tmp) \
	VSHUFF64X2 $0xEE, b, a, tmp \
	VSHUFF64X2 $0x44, b, a, a   \
	VADDPS     tmp, a, a

// FOLD folds what two HALVEs left in a and b: lane 0 of each quarter of a
// becomes the sum of one register.
#define FOLD(a, b, tmp) \
	VSHUFF64X2 $0xDD, b, a, tmp \
	VSHUFF64X2 $0x88, b, a, a   \
	VADDPS     tmp, a, a        \
	VPERMILPS  $0x0E, a, tmp    \
	VADDPS     tmp, a, a        \
	VPERMILPS  $0x01, a, tmp    \
	VADDPS     tmp, a, a

// LANES sets k to the lowest CX lanes and leaves a bit for each in R12; CX is
// below 32.
#define LANES(k) \
	MOVL  $1, R12  \
	SHLL  CX, R12  \
	DECL  R12      \
	KMOVW R12, k

// ENCODE's inner loop ends with a turn for the last n%16 weights of the group,
// where R13, the weights of a turn, is no longer 16.
#define ENCODE(FIND, CODE) \
	TABLES                             \
	MOVQ         dst+8(FP), DI         \
	MOVQ         w+16(FP), SI          \
	MOVQ         n+24(FP), DX          \
	MOVQ         group+32(FP), R8      \
	MOVQ         inv+40(FP), BX        \
	MOVQ         scale+48(FP), R9      \
	MOVQ         sums+56(FP), R10      \
	MOVL         $0x0011, R12          \
	KMOVW        R12, K6               \
	                                   \
group:                                     \
	MOVQ         R8, CX                \
	CMPQ         DX, CX                \
	CMOVQLT      DX, CX                \
	SUBQ         CX, DX                \
	VBROADCASTSS (BX), Z0              \
	VBROADCASTSS (R9), Z1              \
	ADDQ         $4, BX                \
	ADDQ         $4, R9                \
	VPXORD       Z2, Z2, Z2            \
	VPXORD       Z3, Z3, Z3            \
	KXNORW       K7, K7, K7            \
	MOVL         $16, R13              \
	                                   \
loop:                                      \
	SUBQ         $16, CX               \
	JLT          tail                  \
	                                   \
body:                                      \
	VMOVUPS.Z    (SI), K7, Z4          \
	VMULPS       Z4, Z0, Z5            \
	FIND(Z5, Z6, Z7, K1)               \
	CODE(Z6, K1)                       \
	VPMOVDB      Z6, X6                \
	VMOVDQU8     X6, K7, (DI)          \
	VMULPS       Z7, Z1, Z7            \
	VSUBPS       Z7, Z4, Z7            \
	VMULPS       Z7, Z7, Z7            \
	VADDPS       Z7, Z3, K7, Z3        \
	VMULPS       Z4, Z4, Z4            \
	VADDPS       Z4, Z2, K7, Z2        \
	LEAQ         (SI)(R13*4), SI       \
	ADDQ         R13, DI               \
	JMP          loop                  \
	                                   \
tail:                                      \
	ADDQ         $16, CX               \
	JLE          done                  \
	LANES(K7)                          \
	MOVL         CX, R13               \
	XORL         CX, CX                \
	JMP          body                  \
	                                   \
done:                                      \
	HALVE(Z2, Z3, Z4)                  \
	FOLD(Z2, Z2, Z4)                   \
	VCOMPRESSPS  Z2, K6, Z2            \
	VMOVSD       X2, (R10)             \
	ADDQ         $8, R10               \
	TESTQ        DX, DX                \
	JNZ          group                 \
	VZEROUPPER                         \
	RET

// func encodeAVX512(t *table, dst *uint8, w *float32, n, group int, inv, scale *float32, sums *groupError)
TEXT ·encodeAVX512(SB), NOSPLIT, $0-64
	MOVQ t+0(FP), AX
	MOVQ table_bits(AX), AX
	CMPQ AX, $3
	JLT  two
	JEQ  three
	CMPQ AX, $4
	JEQ  four
	JMP  encode5<>(SB)

two:
	JMP encode2<>(SB)

three:
	JMP encode3<>(SB)

four:
	JMP encode4<>(SB)

TEXT encode2<>(SB), NOSPLIT, $0-64
	ENCODE(FIND2, CODE2)

TEXT encode3<>(SB), NOSPLIT, $0-64
	ENCODE(FIND3, CODE3)

TEXT encode4<>(SB), NOSPLIT, $0-64
	ENCODE(FIND4, CODE4)

TEXT encode5<>(SB), NOSPLIT, $0-64
	ENCODE(FIND5, CODE5)

// CORRELATE takes two reciprocals, the last of an odd number twice, and 32
// weights a turn. The four searches of a turn advance side by side, since one
// alone waits for its own comparisons: x in Z8 to Z11, index in Z12 to Z15,
// value in Z16 to Z19.
#define COMPARE4 \
	VCMPPS $17, Z8, Z16, K1  \
	VCMPPS $17, Z9, Z17, K2  \
	VCMPPS $17, Z10, Z18, K3 \
	VCMPPS $17, Z11, Z19, K4

#define PERMUTE4(from) \
	VPERMPS from, Z12, Z16 \
	VPERMPS from, Z13, Z17 \
	VPERMPS from, Z14, Z18 \
	VPERMPS from, Z15, Z19

#define NEXT4(thresholds, bit) \
	PERMUTE4(thresholds)     \
	COMPARE4                 \
	VPORD bit, Z12, K1, Z12  \
	VPORD bit, Z13, K2, Z13  \
	VPORD bit, Z14, K3, Z14  \
	VPORD bit, Z15, K4, Z15

#define FIRST4 \
	VCMPPS      $17, Z8, Z31, K1  \
	VCMPPS      $17, Z9, Z31, K2  \
	VCMPPS      $17, Z10, Z31, K3 \
	VCMPPS      $17, Z11, Z31, K4 \
	VMOVDQA32.Z Z24, K1, Z12      \
	VMOVDQA32.Z Z24, K2, Z13      \
	VMOVDQA32.Z Z24, K3, Z14      \
	VMOVDQA32.Z Z24, K4, Z15

#define VALUES2 FIRST4; NEXT4(Z30, Z23); PERMUTE4(Z26)
#define VALUES3 FIRST4; NEXT4(Z30, Z23); NEXT4(Z29, Z22); PERMUTE4(Z26)
#define VALUES4 FIRST4; NEXT4(Z30, Z23); NEXT4(Z29, Z22); NEXT4(Z28, Z21); PERMUTE4(Z26)
#define VALUES5 \
	FIRST4                     \
	NEXT4(Z30, Z23)            \
	NEXT4(Z29, Z22)            \
	NEXT4(Z28, Z21)            \
	PERMUTE4(Z27)              \
	COMPARE4                   \
	PERMUTE4(Z26)              \
	VPERMPS Z25, Z12, K1, Z16  \
	VPERMPS Z25, Z13, K2, Z17  \
	VPERMPS Z25, Z14, K3, Z18  \
	VPERMPS Z25, Z15, K4, Z19

#define CORRELATE(VALUES) \
	TABLES                             \
	MOVQ         dst+8(FP), DI         \
	MOVQ         w+16(FP), SI          \
	MOVQ         n+24(FP), DX          \
	MOVQ         inv+32(FP), BX        \
	MOVQ         m+40(FP), R8          \
	MOVL         $0x1111, R12          \
	KMOVW        R12, K5               \
	                                   \
pair:                                      \
	VBROADCASTSS (BX), Z0              \
	VMOVAPS      Z0, Z1                \
	CMPQ         R8, $1                \
	JEQ          single                \
	VBROADCASTSS 4(BX), Z1             \
	                                   \
single:                                    \
	VPXORD       Z2, Z2, Z2            \
	VPXORD       Z3, Z3, Z3            \
	VPXORD       Z4, Z4, Z4            \
	VPXORD       Z5, Z5, Z5            \
	KXNORW       K6, K6, K6            \
	KXNORW       K7, K7, K7            \
	MOVQ         SI, R9                \
	MOVQ         DX, CX                \
	                                   \
loop:                                      \
	SUBQ         $32, CX               \
	JLT          tail                  \
	                                   \
body:                                      \
	VMOVUPS.Z    (R9), K7, Z6          \
	VMOVUPS.Z    64(R9), K6, Z7        \
	VMULPS       Z6, Z0, Z8            \
	VMULPS       Z6, Z1, Z9            \
	VMULPS       Z7, Z0, Z10           \
	VMULPS       Z7, Z1, Z11           \
	VALUES                             \
	VMULPS       Z6, Z16, Z8           \
	VMULPS       Z6, Z17, Z9           \
	VMULPS       Z7, Z18, Z10          \
	VMULPS       Z7, Z19, Z11          \
	VMULPS       Z16, Z16, Z16         \
	VMULPS       Z17, Z17, Z17         \
	VMULPS       Z18, Z18, Z18         \
	VMULPS       Z19, Z19, Z19         \
	VADDPS       Z8, Z2, K7, Z2        \
	VADDPS       Z16, Z3, K7, Z3       \
	VADDPS       Z9, Z4, K7, Z4        \
	VADDPS       Z17, Z5, K7, Z5       \
	VADDPS       Z10, Z2, K6, Z2       \
	VADDPS       Z18, Z3, K6, Z3       \
	VADDPS       Z11, Z4, K6, Z4       \
	VADDPS       Z19, Z5, K6, Z5       \
	ADDQ         $128, R9              \
	JMP          loop                  \
	                                   \
tail:                                      \
	ADDQ         $32, CX               \
	JLE          done                  \
	LANES(K7)                          \
	SHRL         $16, R12              \
	KMOVW        R12, K6               \
	XORL         CX, CX                \
	JMP          body                  \
	                                   \
done:                                      \
	HALVE(Z2, Z3, Z6)                  \
	HALVE(Z4, Z5, Z6)                  \
	FOLD(Z2, Z4, Z6)                   \
	VCOMPRESSPS  Z2, K5, Z2            \
	CMPQ         R8, $1                \
	JEQ          last                  \
	VMOVUPS      X2, (DI)              \
	ADDQ         $16, DI               \
	ADDQ         $8, BX                \
	SUBQ         $2, R8                \
	JNZ          pair                  \
	VZEROUPPER                         \
	RET                                \
	                                   \
last:                                      \
	VMOVSD       X2, (DI)              \
	VZEROUPPER                         \
	RET

// func correlateAVX512(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlateAVX512(SB), NOSPLIT, $0-48
	MOVQ t+0(FP), AX
	MOVQ table_bits(AX), AX
	CMPQ AX, $3
	JLT  two
	JEQ  three
	CMPQ AX, $4
	JEQ  four
	JMP  correlate5<>(SB)

two:
	JMP correlate2<>(SB)

three:
	JMP correlate3<>(SB)

four:
	JMP correlate4<>(SB)

TEXT correlate2<>(SB), NOSPLIT, $0-48
	CORRELATE(VALUES2)

TEXT correlate3<>(SB), NOSPLIT, $0-48
	CORRELATE(VALUES3)

TEXT correlate4<>(SB), NOSPLIT, $0-48
	CORRELATE(VALUES4)

TEXT correlate5<>(SB), NOSPLIT, $0-48
	CORRELATE(VALUES5)

// func peaksAVX512(dst *uint32, w *float32, n, group int)
TEXT ·peaksAVX512(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         w+8(FP), SI
	MOVQ         n+16(FP), DX
	MOVQ         group+24(FP), R8
	MOVL         $0x7FFFFFFF, R12
	VPBROADCASTD R12, Z3

group:
	MOVQ    R8, CX
	CMPQ    DX, CX
	CMOVQLT DX, CX
	SUBQ    CX, DX
	VPXORD  Z0, Z0, Z0

loop:
	SUBQ    $16, CX
	JLT     tail
	VPANDD  (SI), Z3, Z1
	VPMAXUD Z1, Z0, Z0
	ADDQ    $64, SI
	JMP     loop

tail:
	ADDQ        $16, CX
	JZ          fold
	LANES(K7)
	VMOVDQU32.Z (SI), K7, Z1
	VPANDD      Z3, Z1, Z1
	VPMAXUD     Z1, Z0, Z0
	LEAQ        (SI)(CX*4), SI

fold:
	VEXTRACTI64X4 $1, Z0, Y1
	VPMAXUD       Y1, Y0, Y0
	VEXTRACTI128  $1, Y0, X1
	VPMAXUD       X1, X0, X0
	VPSHUFD       $0x0E, X0, X1
	VPMAXUD       X1, X0, X0
	VPSHUFD       $0x01, X0, X1
	VPMAXUD       X1, X0, X0
	VMOVD         X0, (DI)
	ADDQ          $4, DI
	TESTQ         DX, DX
	JNZ           group
	VZEROUPPER
	RET
