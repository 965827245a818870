//go:build !noasm

// AVX2. kernel.go defines what these compute; lanes 0 to 7 and 8 to 15 of a sum
// are two registers.
//
// Registers that last: AX the table's vectors, Y15 the first threshold, R12 the
// address of the mask of a tail's lanes.

#include "go_asm.h"
#include "textflag.h"

#define TABLES \
	MOVQ    t+0(FP), AX            \
	LEAQ    table_vectors(AX), AX  \
	VMOVUPS vectors_first(AX), Y15

#define NARROW(i) (vectors_narrow+32*i)(AX)
#define VALUES(i) (vectors_narrowValues+32*i)(AX)

// FINDb leaves minus the code of x in code and its value in q, and uses a, b
// and c; comparisons are threshold < x.
#define DECIDE(i, x, code, a) \
	VPERMPS NARROW(i), code, a  \
	VCMPPS  $17, x, a, a        \
	VPADDD  code, code, code    \
	VPADDD  a, code, code

#define DECIDE2(x, code, a) \
	VCMPPS $17, x, Y15, code \
	DECIDE(0, x, code, a)

#define DECIDE3(x, code, a) \
	DECIDE2(x, code, a) \
	DECIDE(1, x, code, a)

#define FIND2(x, code, q, a, b, c) DECIDE2(x, code, a); VPERMPS VALUES(0), code, q
#define FIND3(x, code, q, a, b, c) DECIDE3(x, code, a); VPERMPS VALUES(0), code, q

#define FIND4(x, code, q, a, b, c) \
	DECIDE3(x, code, a)           \
	VPERMPS   NARROW(2), code, a  \
	VCMPPS    $17, x, a, a        \
	VPERMPS   VALUES(0), code, q  \
	VPERMPS   VALUES(1), code, b  \
	VBLENDVPS a, b, q, q          \
	VPADDD    code, code, code    \
	VPADDD    a, code, code

#define FIND5(x, code, q, a, b, c) \
	DECIDE3(x, code, a)           \
	VPERMPS   NARROW(2), code, a  \
	VCMPPS    $17, x, a, a        \
	VPERMPS   NARROW(3), code, b  \
	VPERMPS   NARROW(4), code, c  \
	VBLENDVPS a, c, b, b          \
	VCMPPS    $17, x, b, x        \
	VPERMPS   VALUES(0), code, q  \
	VPERMPS   VALUES(2), code, b  \
	VBLENDVPS a, b, q, q          \
	VPERMPS   VALUES(1), code, b  \
	VPERMPS   VALUES(3), code, c  \
	VBLENDVPS a, c, b, b          \
	VBLENDVPS x, b, q, q          \
	VPADDD    code, code, code    \
	VPADDD    a, code, code       \
	VPADDD    code, code, code    \
	VPADDD    x, code, code

// A loop's body is written for whole vectors and for the tail, which loads
// zeros for the weights that are not there and clears what they add. i is the
// half of the 16 lanes.
#define LOAD(i, src, dst) VMOVUPS (32*i)(src), dst
#define KEEP(x)
#define LOADTAIL(i, src, dst) \
	VMOVUPS    (32*i)(R12), Y14 \
	VMASKMOVPS (32*i)(src), Y14, dst
#define KEEPTAIL(x) VANDPS Y14, x, x

// LANES points R12 to a mask of the lowest CX of 16 lanes.
#define LANES \
	LEAQ lanes<>+64(SB), R12 \
	NEGQ CX                  \
	LEAQ (R12)(CX*4), R12    \
	NEGQ CX

DATA lanes<>+0(SB)/8, $-1
DATA lanes<>+8(SB)/8, $-1
DATA lanes<>+16(SB)/8, $-1
DATA lanes<>+24(SB)/8, $-1
DATA lanes<>+32(SB)/8, $-1
DATA lanes<>+40(SB)/8, $-1
DATA lanes<>+48(SB)/8, $-1
DATA lanes<>+56(SB)/8, $-1
DATA lanes<>+64(SB)/8, $0
DATA lanes<>+72(SB)/8, $0
DATA lanes<>+80(SB)/8, $0
DATA lanes<>+88(SB)/8, $0
DATA lanes<>+96(SB)/8, $0
DATA lanes<>+104(SB)/8, $0
DATA lanes<>+112(SB)/8, $0
DATA lanes<>+120(SB)/8, $0
GLOBL lanes<>(SB), RODATA|NOPTR, $128

// FOLD leaves the sums of the 16 lanes in a0, a1 and of those in b0, b1 in the
// two lowest lanes of x, which is the lower half of a0.
#define FOLD(a0, a1, b0, b1, x, tmp, xtmp) \
	VADDPS       a1, a0, a0         \
	VADDPS       b1, b0, b0         \
	VPERM2F128   $0x31, b0, a0, tmp \
	VPERM2F128   $0x20, b0, a0, a0  \
	VADDPS       tmp, a0, a0        \
	VPERMILPS    $0x0E, a0, tmp     \
	VADDPS       tmp, a0, a0        \
	VPERMILPS    $0x01, a0, tmp     \
	VADDPS       tmp, a0, a0        \
	VEXTRACTF128 $1, a0, xtmp       \
	VUNPCKLPS    xtmp, x, x

// ENCODE8 leaves the codes of half a turn in code and adds to e and s.
#define ENCODE8(FIND, LOAD, KEEP, i, code, e, s) \
	LOAD(i, SI, Y2)                 \
	VMULPS Y2, Y0, Y3               \
	FIND(Y3, code, Y4, Y5, Y6, Y7)  \
	VPABSD code, code               \
	VMULPS Y4, Y1, Y4               \
	VSUBPS Y4, Y2, Y4               \
	VMULPS Y4, Y4, Y4               \
	KEEP(Y4)                        \
	VADDPS Y4, s, s                 \
	VMULPS Y2, Y2, Y2               \
	VADDPS Y2, e, e

// ENCODE16 leaves the codes of a turn in the bytes of X2.
#define ENCODE16(FIND, LOAD, KEEP) \
	ENCODE8(FIND, LOAD, KEEP, 0, Y8, Y9, Y11)   \
	ENCODE8(FIND, LOAD, KEEP, 1, Y13, Y10, Y12) \
	VPACKSSDW    Y13, Y8, Y3                    \
	VPACKUSWB    Y3, Y3, Y3                     \
	VEXTRACTI128 $1, Y3, X2                     \
	VPUNPCKLDQ   X2, X3, X2

#define ENCODE(FIND) \
	TABLES                             \
	MOVQ         dst+8(FP), DI         \
	MOVQ         w+16(FP), SI          \
	MOVQ         n+24(FP), DX          \
	MOVQ         group+32(FP), R8      \
	MOVQ         inv+40(FP), BX        \
	MOVQ         scale+48(FP), R9      \
	MOVQ         sums+56(FP), R10      \
	                                   \
group:                                     \
	MOVQ         R8, CX                \
	CMPQ         DX, CX                \
	CMOVQLT      DX, CX                \
	SUBQ         CX, DX                \
	VBROADCASTSS (BX), Y0              \
	VBROADCASTSS (R9), Y1              \
	ADDQ         $4, BX                \
	ADDQ         $4, R9                \
	VXORPS       Y9, Y9, Y9            \
	VXORPS       Y10, Y10, Y10         \
	VXORPS       Y11, Y11, Y11         \
	VXORPS       Y12, Y12, Y12         \
	                                   \
loop:                                      \
	SUBQ         $16, CX               \
	JLT          tail                  \
	ENCODE16(FIND, LOAD, KEEP)         \
	VMOVDQU      X2, (DI)              \
	ADDQ         $64, SI               \
	ADDQ         $16, DI               \
	JMP          loop                  \
	                                   \
tail:                                      \
	ADDQ         $16, CX               \
	JZ           done                  \
	LANES                              \
	ENCODE16(FIND, LOADTAIL, KEEPTAIL) \
	LEAQ         (SI)(CX*4), SI        \
	                                   \
bytes:                                     \
	VPEXTRB      $0, X2, (DI)          \
	VPSRLDQ      $1, X2, X2            \
	INCQ         DI                    \
	DECQ         CX                    \
	JNZ          bytes                 \
	                                   \
done:                                      \
	FOLD(Y9, Y10, Y11, Y12, X9, Y2, X2) \
	VMOVSD       X9, (R10)             \
	ADDQ         $8, R10               \
	TESTQ        DX, DX                \
	JNZ          group                 \
	VZEROUPPER                         \
	RET

// func encodeAVX2(t *table, dst *uint8, w *float32, n, group int, inv, scale *float32, sums *groupError)
TEXT ·encodeAVX2(SB), NOSPLIT, $0-64
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
	ENCODE(FIND2)

TEXT encode3<>(SB), NOSPLIT, $0-64
	ENCODE(FIND3)

TEXT encode4<>(SB), NOSPLIT, $0-64
	ENCODE(FIND4)

TEXT encode5<>(SB), NOSPLIT, $0-64
	ENCODE(FIND5)

// CORRELATE8 adds the products of half a turn to wq and qq.
#define CORRELATE8(FIND, LOAD, KEEP, i, wq, qq) \
	LOAD(i, R9, Y2)               \
	VMULPS Y2, Y0, Y3             \
	FIND(Y3, Y8, Y4, Y5, Y6, Y7)  \
	VMULPS Y4, Y2, Y2             \
	VMULPS Y4, Y4, Y4             \
	KEEP(Y4)                      \
	VADDPS Y2, wq, wq             \
	VADDPS Y4, qq, qq

#define CORRELATE(FIND) \
	TABLES                                               \
	MOVQ         dst+8(FP), DI                           \
	MOVQ         w+16(FP), SI                            \
	MOVQ         n+24(FP), DX                            \
	MOVQ         inv+32(FP), BX                          \
	MOVQ         m+40(FP), R8                            \
	                                                     \
next:                                                        \
	VBROADCASTSS (BX), Y0                                \
	VXORPS       Y9, Y9, Y9                              \
	VXORPS       Y10, Y10, Y10                           \
	VXORPS       Y11, Y11, Y11                           \
	VXORPS       Y12, Y12, Y12                           \
	MOVQ         SI, R9                                  \
	MOVQ         DX, CX                                  \
	                                                     \
loop:                                                        \
	SUBQ         $16, CX                                 \
	JLT          tail                                    \
	CORRELATE8(FIND, LOAD, KEEP, 0, Y9, Y11)             \
	CORRELATE8(FIND, LOAD, KEEP, 1, Y10, Y12)            \
	ADDQ         $64, R9                                 \
	JMP          loop                                    \
	                                                     \
tail:                                                        \
	ADDQ         $16, CX                                 \
	JZ           done                                    \
	LANES                                                \
	CORRELATE8(FIND, LOADTAIL, KEEPTAIL, 0, Y9, Y11)     \
	CORRELATE8(FIND, LOADTAIL, KEEPTAIL, 1, Y10, Y12)    \
	                                                     \
done:                                                        \
	FOLD(Y9, Y10, Y11, Y12, X9, Y2, X2)                  \
	VMOVSD       X9, (DI)                                \
	ADDQ         $8, DI                                  \
	ADDQ         $4, BX                                  \
	DECQ         R8                                      \
	JNZ          next                                    \
	VZEROUPPER                                           \
	RET

// func correlateAVX2(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlateAVX2(SB), NOSPLIT, $0-48
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
	CORRELATE(FIND2)

TEXT correlate3<>(SB), NOSPLIT, $0-48
	CORRELATE(FIND3)

TEXT correlate4<>(SB), NOSPLIT, $0-48
	CORRELATE(FIND4)

TEXT correlate5<>(SB), NOSPLIT, $0-48
	CORRELATE(FIND5)

// func peaksAVX2(dst *uint32, w *float32, n, group int)
TEXT ·peaksAVX2(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         w+8(FP), SI
	MOVQ         n+16(FP), DX
	MOVQ         group+24(FP), R8
	MOVL         $0x7FFFFFFF, R11
	VMOVD        R11, X5
	VPBROADCASTD X5, Y5

group:
	MOVQ    R8, CX
	CMPQ    DX, CX
	CMOVQLT DX, CX
	SUBQ    CX, DX
	VPXOR   Y0, Y0, Y0
	VPXOR   Y1, Y1, Y1

loop:
	SUBQ    $16, CX
	JLT     tail
	VPAND   (SI), Y5, Y2
	VPAND   32(SI), Y5, Y3
	VPMAXUD Y2, Y0, Y0
	VPMAXUD Y3, Y1, Y1
	ADDQ    $64, SI
	JMP     loop

tail:
	ADDQ    $16, CX
	JZ      fold
	LANES
	LOADTAIL(0, SI, Y2)
	LOADTAIL(1, SI, Y3)
	VPAND   Y2, Y5, Y2
	VPAND   Y3, Y5, Y3
	VPMAXUD Y2, Y0, Y0
	VPMAXUD Y3, Y1, Y1
	LEAQ    (SI)(CX*4), SI

fold:
	VPMAXUD      Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD      X1, X0, X0
	VPSHUFD      $0x0E, X0, X1
	VPMAXUD      X1, X0, X0
	VPSHUFD      $0x01, X0, X1
	VPMAXUD      X1, X0, X0
	VMOVD        X0, (DI)
	ADDQ         $4, DI
	TESTQ        DX, DX
	JNZ          group
	VZEROUPPER
	RET

// squeeze<> has a shuffle for each width that moves the first bits bytes of
// both quadwords together.
DATA squeeze<>+0(SB)/8, $0xFFFFFFFF09080100
DATA squeeze<>+8(SB)/8, $-1
DATA squeeze<>+16(SB)/8, $0xFFFF0A0908020100
DATA squeeze<>+24(SB)/8, $-1
DATA squeeze<>+32(SB)/8, $0x0B0A090803020100
DATA squeeze<>+40(SB)/8, $-1
DATA squeeze<>+48(SB)/8, $0x0A09080403020100
DATA squeeze<>+56(SB)/8, $0xFFFFFFFFFFFF0C0B
GLOBL squeeze<>(SB), RODATA|NOPTR, $64

// func pack32AVX2(dst *byte, codes *uint8, blocks, bits int)
//
// Neighbouring codes join in words, words in doublewords, those in quadwords.
TEXT ·pack32AVX2(SB), NOSPLIT, $0-32
	MOVQ  dst+0(FP), DI
	MOVQ  codes+8(FP), SI
	MOVQ  blocks+16(FP), DX
	MOVQ  bits+24(FP), CX
	TESTQ DX, DX
	JZ    done

	MOVL $1, AX                  // bytes 1, 2^bits
	SHLL CX, AX
	SHLL $8, AX
	ORL  $1, AX
	VMOVD AX, X7
	VPBROADCASTW X7, Y7

	LEAQ (CX)(CX*1), R8          // words 1, 4^bits; R8 is 2·bits
	MOVQ CX, R9
	MOVQ R8, CX
	MOVL $0x10000, AX
	SHLL CX, AX
	ORL  $1, AX
	VMOVD AX, X6
	VPBROADCASTD X6, Y6

	LEAQ (R8)(R8*1), CX          // the lower 4·bits bits
	MOVL $1, AX
	SHLQ CX, AX
	DECQ AX
	VMOVQ AX, X5
	VPBROADCASTQ X5, Y5

	MOVL $32, AX                 // the gap between doublewords
	SUBL CX, AX
	VMOVD AX, X4

	LEAQ squeeze<>-32(SB), R10
	SHLQ $4, R9
	VBROADCASTI128 (R10)(R9*1), Y3

loop:
	VMOVDQU      (SI), Y0
	VPMADDUBSW   Y7, Y0, Y0
	VPMADDWD     Y6, Y0, Y0
	VPSRLQ       X4, Y0, Y1
	VPAND        Y0, Y5, Y0
	VPANDN       Y1, Y5, Y1
	VPOR         Y1, Y0, Y0
	VPSHUFB      Y3, Y0, Y0
	VMOVDQU      X0, (DI)
	VEXTRACTI128 $1, Y0, (DI)(R8*1)
	ADDQ         $32, SI
	LEAQ         (DI)(R8*2), DI
	DECQ         DX
	JNZ          loop
	VZEROUPPER

done:
	RET
