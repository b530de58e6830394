package check

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/caisson-dev/caisson"
)

// lookalikes is a list of pairs: a letter that most fonts draw like a Latin letter, and this Latin letter. The pairs are taken
// from Unicode's list of confusables (UTS 39). Compatibility forms, such as full width, are not listed, because normalization
// folds them.
const lookalikes = "" +
	// Cyrillic letters
	"аaеeоoрpсcуyхxіiјjѕsһhԁdԛqԝwӏlкkгrпnАaВbЕeЗ3КkМmНhОoРpСcТtУyХxІlЈjЅsԀdԚqԜwӀlѵvѴvҮyүyҺhԌgҽeѡw" +
	// Greek letters
	"αaγyιiκkνvοoρpτtυuχxϲcϳjΑaΒbΕeΖzΗhΙlΚkΜmΝnΟoΡpΤtΥyΧxϹcͿj" +
	// Armenian letters
	"օoսuհhոnյjցgզqՕoՍuԼl" +
	// Cherokee letters
	"ᎪaᏴbᏟcᎠdᎬeᎶgᎻhᎫjᏦkᏞlᎷmᏢpᎡrᏚsᎢtᏙvᎳwᏃz" +
	// Coptic letters, and other letters of the Latin script
	"ⲟoⲣpⲥcɡgɑaıiƖlǀlɩi"

// lookalikeTable returns lookalikes as a map from each letter to the Latin letter that it looks like.
var lookalikeTable = sync.OnceValue(func() map[rune]rune {
	table := map[rune]rune{}
	list := []rune(lookalikes)
	for i := 0; i+1 < len(list); i += 2 {
		table[list[i]] = list[i+1]
	}
	return table
})

// nameSkeleton returns the skeleton of a name: a simplified form that is equal for names that look alike.
func nameSkeleton(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && name[i] < utf8.RuneSelf
	}
	if !plain {
		name = norm.NFKC.String(name)
	}
	var b strings.Builder
	b.Grow(len(name))
	table := lookalikeTable()
	for _, r := range name {
		switch {
		case r == 'I' || r == '1' || r == '|':
			b.WriteByte('l')
		case r == '0':
			b.WriteByte('o')
		case 'A' <= r && r <= 'Z':
			b.WriteByte(byte(r) + 'a' - 'A')
		case r < utf8.RuneSelf:
			b.WriteByte(byte(r))
		case ignorable(r):
		case table[r] != 0:
			b.WriteRune(table[r])
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// alphabets are the scripts of which letters can be mistaken for letters of another one of these scripts.
var alphabets = []struct {
	name  string
	table *unicode.RangeTable
}{
	{"Latin", unicode.Latin}, {"Cyrillic", unicode.Cyrillic}, {"Greek", unicode.Greek}, {"Armenian", unicode.Armenian},
	{"Cherokee", unicode.Cherokee}, {"Coptic", unicode.Coptic}, {"Lisu", unicode.Lisu},
}

// checkScripts requires a review of a name that mixes letters of two alphabets in one word. Names in one script, names whose
// words are in different scripts, and the mixtures that Japanese, Chinese and Korean are written in are allowed.
func checkScripts(name string, add func(verdict, format string, args ...any)) {
	word := -1 // index in alphabets of the script of the current word, or -1
	for _, r := range name {
		switch {
		case unicode.Is(unicode.Mn, r):
			continue // a combining mark belongs to the letter before it
		case !unicode.IsLetter(r):
			word = -1
			continue
		}
		for i, a := range alphabets {
			if !unicode.Is(a.table, r) {
				continue
			}
			if word >= 0 && word != i {
				add(caisson.VerdictAsk, "the name %+.120q has %s and %s letters in one word, which may imitate another name", name, alphabets[word].name, a.name)
				return
			}
			word = i
			break
		}
	}
}
