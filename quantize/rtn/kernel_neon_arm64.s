//go:build !noasm

// NEON. kernel.go defines what these compute; four lanes of a sum are a register.
//
// Registers that last: V0 to V7 the thresholds, V8 to V15 the values, V24 the
// bytes of a number and V25 four times a number in each of its bytes, R8 the
// table's vectors.

#include "go_asm.h"
#include "textflag.h"

// Instructions that Go's assembler does not know, by their bits (Arm
// Architecture Reference Manual, DDI 0487, C7.2), with registers by their
// numbers and the one that is written first.

// fadd vd.4s, vn.4s, vm.4s
#define FADD(d, n, m) WORD $(0x4e20d400 + (m)*0x10000 + (n)*32 + (d))

// fsub vd.4s, vn.4s, vm.4s
#define FSUB(d, n, m) WORD $(0x4ea0d400 + (m)*0x10000 + (n)*32 + (d))

// fmul vd.4s, vn.4s, vm.4s
#define FMUL(d, n, m) WORD $(0x6e20dc00 + (m)*0x10000 + (n)*32 + (d))

// fcmgt vd.4s, vn.4s, vm.4s
#define FCMGT(d, n, m) WORD $(0x6ea0e400 + (m)*0x10000 + (n)*32 + (d))

// mla vd.4s, vn.4s, vm.4s
#define MLA(d, n, m) WORD $(0x4ea09400 + (m)*0x10000 + (n)*32 + (d))

// xtn vd.4h, vn.4s
#define XTN4H(d, n) WORD $(0x0e612800 + (n)*32 + (d))

// xtn vd.8b, vn.8h
#define XTN8B(d, n) WORD $(0x0e212800 + (n)*32 + (d))

// umaxv sd, vn.4s
#define UMAXV(d, n) WORD $(0x6eb0a800 + (n)*32 + (d))

#define TABLES \
	MOVD  t+0(FP), R8                                                              \
	ADD   $table_vectors, R8                                                       \
	ADD   $vectors_thresholds, R8, R9                                              \
	VLD1.P 64(R9), [V0.B16, V1.B16, V2.B16, V3.B16]                                \
	VLD1  (R9), [V4.B16, V5.B16, V6.B16, V7.B16]                                   \
	ADD   $vectors_values, R8, R9                                                  \
	VLD1.P 64(R9), [V8.B16, V9.B16, V10.B16, V11.B16]                              \
	VLD1  (R9), [V12.B16, V13.B16, V14.B16, V15.B16]                               \
	MOVD  $0x03020100, R9                                                          \
	VDUP  R9, V24.S4                                                               \
	MOVD  $0x04040404, R9                                                          \
	VDUP  R9, V25.S4

// NAME sets V31 to the bytes of what V30 names in a table of float32.
#define NAME \
	VMOV V24.B16, V31.B16 \
	MLA(31, 30, 25)

// DECIDE takes the next decision about V29: V30 are those before it.
#define DECIDE(table) \
	NAME                          \
	VTBL V31.B16, table, V31.B16  \
	FCMGT(31, 29, 31)             \
	VADD V30.S4, V30.S4, V30.S4   \
	VSUB V31.S4, V30.S4, V30.S4

// DECIDEd leaves d decisions about V29, one bit each, in V30. It changes V31.
#define DECIDE1 \
	FMOVQ vectors_first(R8), F30 \
	FCMGT(30, 29, 30)            \
	VUSHR $31, V30.S4, V30.S4

#define PAIR [V2.B16, V3.B16]
#define FOUR [V4.B16, V5.B16, V6.B16, V7.B16]

#define DECIDE2 DECIDE1; DECIDE([V0.B16])
#define DECIDE3 DECIDE2; DECIDE([V1.B16])
#define DECIDE4 DECIDE3; DECIDE(PAIR)
#define DECIDE5 DECIDE4; DECIDE(FOUR)

// FINDb leaves the code of V29 in V30 and its value in V31. It changes V29.
#define FIND2 DECIDE2; NAME; VTBL V31.B16, [V8.B16], V31.B16
#define FIND3 DECIDE3; NAME; VTBL V31.B16, [V8.B16, V9.B16], V31.B16
#define FIND4 DECIDE4; NAME; VTBL V31.B16, [V8.B16, V9.B16, V10.B16, V11.B16], V31.B16

#define FIND5 \
	DECIDE5                                                        \
	NAME                                                           \
	VMOVI $64, V29.B16                                             \
	VSUB  V29.B16, V31.B16, V29.B16                                \
	VTBL  V31.B16, [V8.B16, V9.B16, V10.B16, V11.B16], V31.B16     \
	VTBX  V29.B16, [V12.B16, V13.B16, V14.B16, V15.B16], V31.B16

#define CLEAR \
	VEOR V16.B16, V16.B16, V16.B16 \
	VEOR V17.B16, V17.B16, V17.B16 \
	VEOR V18.B16, V18.B16, V18.B16 \
	VEOR V19.B16, V19.B16, V19.B16 \
	VEOR V20.B16, V20.B16, V20.B16 \
	VEOR V21.B16, V21.B16, V21.B16 \
	VEOR V22.B16, V22.B16, V22.B16 \
	VEOR V23.B16, V23.B16, V23.B16

// FOLD leaves the sums of V16 to V19 and of V20 to V23 in the two lowest lanes
// of V16.
#define FOLD \
	FADD(16, 16, 18)                    \
	FADD(17, 17, 19)                    \
	FADD(16, 16, 17)                    \
	FADD(20, 20, 22)                    \
	FADD(21, 21, 23)                    \
	FADD(20, 20, 21)                    \
	VEXT  $8, V16.B16, V16.B16, V17.B16 \
	FADD(16, 16, 17)                    \
	VEXT  $8, V20.B16, V20.B16, V21.B16 \
	FADD(20, 20, 21)                    \
	VZIP1 V20.S4, V16.S4, V16.S4        \
	VEXT  $8, V16.B16, V16.B16, V17.B16 \
	FADD(16, 16, 17)

// ENCODE4 writes the codes of four weights, and adds to the i-th sums.
#define ENCODE4(FIND, i) \
	FMOVQ (16*i)(R1), F28       \
	FMUL(29, 28, 26)            \
	FIND                        \
	XTN4H(30, 30)               \
	XTN8B(30, 30)               \
	FMOVS F30, (4*i)(R0)        \
	FMUL(31, 31, 27)            \
	FSUB(31, 28, 31)            \
	FMUL(31, 31, 31)            \
	FADD(20 + i, 20 + i, 31)    \
	FMUL(28, 28, 28)            \
	FADD(16 + i, 16 + i, 28)

#define ENCODE(FIND) \
	TABLES                      \
	MOVD   dst+8(FP), R0        \
	MOVD   w+16(FP), R1         \
	MOVD   groups+24(FP), R2    \
	MOVD   group+32(FP), R3     \
	MOVD   inv+40(FP), R4       \
	MOVD   scale+48(FP), R5     \
	MOVD   sums+56(FP), R6      \
	                            \
group:                              \
	VLD1R.P 4(R4), [V26.S4]     \
	VLD1R.P 4(R5), [V27.S4]     \
	MOVD   R3, R7               \
	CLEAR                       \
	                            \
loop:                               \
	ENCODE4(FIND, 0)            \
	ENCODE4(FIND, 1)            \
	ENCODE4(FIND, 2)            \
	ENCODE4(FIND, 3)            \
	ADD    $64, R1              \
	ADD    $16, R0              \
	SUBS   $16, R7, R7          \
	BNE    loop                 \
	FOLD                        \
	FMOVD.P F16, 8(R6)          \
	SUBS   $1, R2, R2           \
	BNE    group                \
	RET

// CORRELATE4 adds the products of four weights to the i-th sums.
#define CORRELATE4(FIND, i) \
	FMOVQ (16*i)(R6), F28    \
	FMUL(29, 28, 26)         \
	FIND                     \
	FMUL(28, 28, 31)         \
	FADD(16 + i, 16 + i, 28) \
	FMUL(31, 31, 31)         \
	FADD(20 + i, 20 + i, 31)

#define CORRELATE(FIND) \
	TABLES                      \
	MOVD   dst+8(FP), R0        \
	MOVD   w+16(FP), R1         \
	MOVD   n+24(FP), R2         \
	MOVD   inv+32(FP), R4       \
	MOVD   m+40(FP), R5         \
	                            \
next:                               \
	VLD1R.P 4(R4), [V26.S4]     \
	MOVD   R1, R6               \
	MOVD   R2, R7               \
	CLEAR                       \
	                            \
loop:                               \
	CORRELATE4(FIND, 0)         \
	CORRELATE4(FIND, 1)         \
	CORRELATE4(FIND, 2)         \
	CORRELATE4(FIND, 3)         \
	ADD    $64, R6              \
	SUBS   $16, R7, R7          \
	BNE    loop                 \
	FOLD                        \
	FMOVD.P F16, 8(R0)          \
	SUBS   $1, R5, R5           \
	BNE    next                 \
	RET

// PACK: neighbouring codes join in words, words in doublewords, those in
// quadwords.
#define PACK(bits, loop) \
loop:                                            \
	VLD1.P 16(R1), [V0.B16]                  \
	VUSHR  $8, V0.H8, V1.H8                  \
	VSLI   $bits, V1.H8, V0.H8               \
	VUSHR  $16, V0.S4, V1.S4                 \
	VSLI   $(2*bits), V1.S4, V0.S4           \
	VUSHR  $32, V0.D2, V1.D2                 \
	VSLI   $(4*bits), V1.D2, V0.D2           \
	VTBL   V2.B16, [V0.B16], V0.B16          \
	FMOVQ  F0, (R0)                          \
	ADD    $(2*bits), R0                     \
	SUBS   $1, R2, R2                        \
	BNE    loop                              \
	RET

// func encode2NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)
TEXT ·encode2NEON(SB), NOSPLIT, $0-64
	ENCODE(FIND2)

// func encode3NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)
TEXT ·encode3NEON(SB), NOSPLIT, $0-64
	ENCODE(FIND3)

// func encode4NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)
TEXT ·encode4NEON(SB), NOSPLIT, $0-64
	ENCODE(FIND4)

// func encode5NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)
TEXT ·encode5NEON(SB), NOSPLIT, $0-64
	ENCODE(FIND5)

// func correlate2NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlate2NEON(SB), NOSPLIT, $0-48
	CORRELATE(FIND2)

// func correlate3NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlate3NEON(SB), NOSPLIT, $0-48
	CORRELATE(FIND3)

// func correlate4NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlate4NEON(SB), NOSPLIT, $0-48
	CORRELATE(FIND4)

// func correlate5NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)
TEXT ·correlate5NEON(SB), NOSPLIT, $0-48
	CORRELATE(FIND5)

// func peaksNEON(dst *uint32, w *float32, groups, group int)
TEXT ·peaksNEON(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD w+8(FP), R1
	MOVD groups+16(FP), R2
	MOVD group+24(FP), R3
	MOVD $0x7fffffff, R4
	VDUP R4, V5.S4

group:
	VEOR V0.B16, V0.B16, V0.B16
	MOVD R3, R7

loop:
	VLD1.P 64(R1), [V1.B16, V2.B16, V3.B16, V4.B16]
	VAND   V5.B16, V1.B16, V1.B16
	VAND   V5.B16, V2.B16, V2.B16
	VAND   V5.B16, V3.B16, V3.B16
	VAND   V5.B16, V4.B16, V4.B16
	VUMAX  V1.S4, V2.S4, V1.S4
	VUMAX  V3.S4, V4.S4, V3.S4
	VUMAX  V1.S4, V0.S4, V0.S4
	VUMAX  V3.S4, V0.S4, V0.S4
	SUBS   $16, R7, R7
	BNE    loop
	UMAXV(0, 0)
	FMOVS.P F0, 4(R0)
	SUBS   $1, R2, R2
	BNE    group
	RET

// squeeze<> has a permutation for each width that moves the first bits bytes of
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

// func pack16NEON(dst *byte, codes *uint8, blocks, bits int)
TEXT ·pack16NEON(SB), NOSPLIT, $0-32
	MOVD  dst+0(FP), R0
	MOVD  codes+8(FP), R1
	MOVD  blocks+16(FP), R2
	MOVD  bits+24(FP), R3
	MOVD  $squeeze<>-32(SB), R4
	ADD   R3<<4, R4
	FMOVQ (R4), F2
	CMP   $3, R3
	BLT   two
	BEQ   three
	CMP   $4, R3
	BEQ   four
	JMP   five
	PACK(2, two)
	PACK(3, three)
	PACK(4, four)
	PACK(5, five)
