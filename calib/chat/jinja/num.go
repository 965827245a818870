package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// mostBits bounds integers, and mostDigits those that are printed or read, as Python does.
const (
	mostBits   = 1 << 18
	mostDigits = 4300
)

// normal returns a whole number as a value.
func normal(i *big.Int) Value {
	if i.IsInt64() {
		return int(i.Int64())
	}
	return i
}

// isNumber reports whether v is a number; so are True and False.
func isNumber(v Value) bool {
	switch v.(type) {
	case bool, int, *big.Int, float64:
		return true
	}
	return false
}

// whole returns a value as a whole number, where its type is one of those.
func whole(v Value) (*big.Int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1), true
		}
		return new(big.Int), true
	case int:
		return big.NewInt(int64(v)), true
	case *big.Int:
		return v, true
	}
	return nil, false
}

// toBig returns a number without its fraction.
func toBig(v Value) *big.Int {
	if i, ok := whole(v); ok {
		return i
	}
	i, _ := big.NewFloat(v.(float64)).Int(nil)
	return i
}

// index returns a value as an index or a count, where it is a whole number that could be one.
func (s *state) index(v Value) int {
	switch v := v.(type) {
	case bool:
		if v {
			return 1
		}
		return 0
	case int:
		return v
	case *big.Int:
		if v.Sign() < 0 {
			return math.MinInt
		}
		return math.MaxInt
	}
	s.known(v)
	s.fail("a whole number is needed, not a value of type %s", typeName(v))
	return 0
}

// float returns a number as a float.
func (s *state) float(v Value) float64 {
	if f, ok := v.(float64); ok {
		return f
	}
	i, ok := whole(v)
	if !ok {
		s.known(v)
		s.fail("a number is needed, not a value of type %s", typeName(v))
	}
	f, _ := new(big.Float).SetInt(i).Float64()
	if math.IsInf(f, 0) {
		s.fail("the number is too large")
	}
	return f
}

// finite returns a float, which must be finite: Jinja cannot always write others into its code.
func (s *state) finite(f float64) Value {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		s.unsupported("a number that is infinite or none")
	}
	return f
}

// decimal prints a whole number.
func (s *state) decimal(i *big.Int) string {
	if i.BitLen() > 14300 || i.BitLen() > 14200 && len(new(big.Int).Abs(i).String()) > mostDigits {
		s.fail("a number of more than %d digits cannot be printed", mostDigits)
	}
	return i.String()
}

// compareNumbers is exact for numbers of any type.
func compareNumbers(a, b Value) int {
	x, xInt := a.(int)
	y, yInt := b.(int)
	if xInt && yInt {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	return toRat(a).Cmp(toRat(b))
}

func toRat(v Value) *big.Rat {
	if f, ok := v.(float64); ok {
		return new(big.Rat).SetFloat64(f)
	}
	return new(big.Rat).SetInt(toBig(v))
}

// arithmetic is an operator between two values.
func (s *state) arithmetic(op string, a, b Value) Value {
	if op == "%" {
		switch a := a.(type) {
		case string:
			return s.printf(a, b)
		case markup:
			s.unsupported("% of an escaped text")
		}
	}
	s.known(a)
	s.known(b)
	if isNumber(a) && isNumber(b) {
		x, ok := whole(a)
		y, ok2 := whole(b)
		if ok && ok2 {
			return s.wholeArithmetic(op, x, y)
		}
		return s.floatArithmetic(op, s.float(a), s.float(b))
	}
	switch op {
	case "+":
		if v, ok := s.joined(a, b); ok {
			return v
		}
	case "*":
		if n, ok := whole(b); ok {
			if v, ok := s.repeat(a, normal(n)); ok {
				return v
			}
		}
		if n, ok := whole(a); ok {
			if v, ok := s.repeat(b, normal(n)); ok {
				return v
			}
		}
	case "-":
		if _, ok := a.(*view); ok {
			s.unsupported("a set")
		}
		if _, ok := b.(*view); ok {
			s.unsupported("a set")
		}
	}
	s.fail("%s cannot be used with %s and %s", op, typeName(a), typeName(b))
	return nil
}

// joined is a + b of texts and lists.
func (s *state) joined(a, b Value) (Value, bool) {
	switch a := a.(type) {
	case string:
		switch b := b.(type) {
		case string:
			s.grow(len(a) + len(b))
			return a + b, true
		case markup:
			return s.escape(a) + b, true
		}
	case markup:
		if _, ok := isText(b); ok {
			return a + s.escape(b), true
		}
	case *List:
		if b, ok := b.(*List); ok {
			s.grow(16 * (len(a.items) + len(b.items)))
			return &List{append(a.items[:len(a.items):len(a.items)], b.items...)}, true
		}
	case *tuple:
		if b, ok := b.(*tuple); ok {
			s.grow(16 * (len(a.items) + len(b.items)))
			return &tuple{items: append(a.items[:len(a.items):len(a.items)], b.items...)}, true
		}
	}
	return nil, false
}

// repeat is v * n of texts and lists.
func (s *state) repeat(v, n Value) (Value, bool) {
	times := max(s.index(n), 0)
	size := func(one int) {
		if one > 0 && times > s.options.Memory/one {
			s.tooMuch()
		}
		s.grow(one * times)
	}
	var items []Value
	switch v := v.(type) {
	case string:
		size(len(v))
		return strings.Repeat(v, times), true
	case markup:
		size(len(v))
		return markup(strings.Repeat(string(v), times)), true
	case *List:
		items = v.items
	case *tuple:
		items = v.items
	default:
		return nil, false
	}
	size(16 * len(items))
	var out []Value
	for range times {
		if len(items) == 0 {
			break
		}
		out = append(out, items...)
	}
	if _, ok := v.(*List); ok {
		return &List{out}, true
	}
	return &tuple{items: out}, true
}

func (s *state) wholeArithmetic(op string, x, y *big.Int) Value {
	zero := func() {
		if y.Sign() == 0 {
			s.fail("division by zero")
		}
	}
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		if x.BitLen()+y.BitLen() > mostBits {
			s.unsupported("so large a number")
		}
		z.Mul(x, y)
	case "/":
		zero()
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			s.fail("the quotient is too large")
		}
		if f == 0 && (x.Sign() < 0) != (y.Sign() < 0) {
			return math.Copysign(0, -1)
		}
		return f
	case "//":
		zero()
		z, _ = floorDivide(x, y)
	case "%":
		zero()
		_, z = floorDivide(x, y)
	case "**":
		if y.Sign() < 0 {
			return s.floatArithmetic(op, s.float(normal(x)), s.float(normal(y)))
		}
		if x.BitLen() > 1 {
			if !y.IsInt64() || y.Int64() > mostBits || x.BitLen()*int(y.Int64()) > mostBits {
				s.unsupported("so large a number")
			}
		} else if y.BitLen() > 2 { // of 0, 1 or -1
			y = new(big.Int).Add(big.NewInt(2), new(big.Int).And(y, big.NewInt(1)))
		}
		z.Exp(x, y, nil)
	}
	s.grow(len(z.Bits()) * 8)
	return normal(z)
}

// floorDivide divides towards minus infinity.
func floorDivide(x, y *big.Int) (quotient, remainder *big.Int) {
	q, r := new(big.Int).QuoRem(x, y, new(big.Int))
	if r.Sign() != 0 && (r.Sign() < 0) != (y.Sign() < 0) {
		q.Sub(q, big.NewInt(1))
		r.Add(r, y)
	}
	return q, r
}

func (s *state) floatArithmetic(op string, x, y float64) Value {
	zero := func() {
		if y == 0 {
			s.fail("division by zero")
		}
	}
	switch op {
	case "+":
		return s.finite(x + y)
	case "-":
		return s.finite(x - y)
	case "*":
		return s.finite(x * y)
	case "/":
		zero()
		return s.finite(x / y)
	case "//":
		zero()
		q, _ := floatFloor(x, y)
		return s.finite(q)
	case "%":
		zero()
		_, r := floatFloor(x, y)
		return s.finite(r)
	}
	if x == 0 && y < 0 {
		s.fail("zero to a negative power")
	}
	if x < 0 && y != math.Trunc(y) {
		s.unsupported("a complex number")
	}
	z := math.Pow(x, y)
	if math.IsInf(z, 0) {
		s.fail("the power is too large")
	}
	return s.finite(z)
}

// floatFloor is Python's division of floats towards minus infinity, with the remainder.
func floatFloor(x, y float64) (quotient, remainder float64) {
	r := math.Mod(x, y)
	q := (x - r) / y
	if r != 0 {
		if (y < 0) != (r < 0) {
			r += y
			q--
		}
	} else {
		r = math.Copysign(0, y)
	}
	if q == 0 {
		return math.Copysign(0, x/y), r
	}
	f := math.Floor(q)
	if q-f > 0.5 {
		f++
	}
	return f, r
}

// sign is + or - before a number.
func (s *state) sign(op string, v Value) Value {
	s.known(v)
	if f, ok := v.(float64); ok {
		if op == "-" {
			return -f
		}
		return f
	}
	i, ok := whole(v)
	if !ok {
		s.fail("%s cannot be used with %s", op, typeName(v))
	}
	if op == "-" {
		i = new(big.Int).Neg(i)
	}
	return normal(i)
}

// parseInt reads a whole number as int(text, base) does.
func (s *state) parseInt(text string, base int) (Value, bool) {
	t := strings.TrimFunc(text, isSpace)
	negative := strings.HasPrefix(t, "-")
	if negative || strings.HasPrefix(t, "+") {
		t = t[1:]
	}
	if base == 0 || base == 2 || base == 8 || base == 16 {
		if len(t) > 2 && t[0] == '0' {
			b := map[byte]int{'b': 2, 'o': 8, 'x': 16}[t[1]|0x20]
			if b != 0 && (base == 0 || base == b) {
				base = b
				t = strings.TrimPrefix(t[2:], "_")
			}
		}
		if base == 0 {
			base = 10
			if strings.HasPrefix(t, "0") && strings.Trim(t, "0_") != "" {
				return nil, false
			}
		}
	}
	s.asciiNumber(t)
	if t == "" || digits(t, base) != len(t) {
		return nil, false
	}
	t = strings.ReplaceAll(t, "_", "")
	if len(t) > mostDigits && base&(base-1) != 0 {
		return nil, false
	}
	i, ok := new(big.Int).SetString(t, base)
	if !ok {
		return nil, false
	}
	if negative {
		i.Neg(i)
	}
	return normal(i), true
}

// asciiNumber refuses digits of other scripts, which Python reads.
func (s *state) asciiNumber(text string) {
	for _, r := range text {
		if r > 127 {
			if isDecimal(r) {
				s.unsupported("a number in digits of another script")
			}
		}
	}
}

// parseFloat reads a number as float(text) does.
func (s *state) parseFloat(text string) (float64, bool) {
	t := strings.TrimFunc(text, isSpace)
	s.asciiNumber(t)
	body := strings.ToLower(strings.TrimLeft(t, "+-"))
	if len(t)-len(body) <= 1 {
		switch body {
		case "inf", "infinity", "nan":
			s.unsupported("a number that is infinite or none")
		}
	}
	for i := range len(t) {
		c := t[i]
		switch {
		case isDigit(c), c == '.', c == 'e', c == 'E', c == '+', c == '-':
		case c == '_' && i > 0 && i+1 < len(t) && isDigit(t[i-1]) && isDigit(t[i+1]):
		default:
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(t, "_", ""), 64)
	if math.IsInf(f, 0) {
		s.unsupported("a number that is infinite or none")
	}
	return f, err == nil
}
