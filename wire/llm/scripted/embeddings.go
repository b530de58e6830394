package scripted

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"

	"github.com/caisson-dev/caisson"
)

// embeddingsFields are the fields of a request for embeddings; others are refused.
var embeddingsFields = []string{"input", "model", "dimensions", "encoding_format", "user"}

const (
	maxInputs     = 2048 // texts in one request; the limit of OpenAI
	maxDimensions = 4096 // numbers in one embedding
	bytesPerFloat = 4
)

type embeddingsRequest struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Dimensions *int            `json:"dimensions"`
	Encoding   string          `json:"encoding_format"`
}

// embed answers a request for embeddings with unit vectors, each of which depends on its text only.
func (m *Model) embed(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req embeddingsRequest
	if err := decode(body, embeddingsFields, &req); err != nil {
		return err
	}
	dimensions := m.script.Dimensions
	if req.Dimensions != nil {
		dimensions = *req.Dimensions
	}
	switch {
	case req.Model == "":
		return invalid("model", "you must provide a model parameter")
	case dimensions < 1 || dimensions > maxDimensions:
		return invalid("dimensions", "must be from 1 to %d", maxDimensions)
	case req.Encoding != "" && req.Encoding != "float" && req.Encoding != "base64":
		return invalid("encoding_format", "must be float or base64")
	}
	if err := m.checkModel(req.Model); err != nil {
		return err
	}
	inputs, tokens, err := embeddingInputs(req.Input)
	if err != nil {
		return err
	}
	if !wait(r.Context(), m.script.Delay.First) {
		panic(http.ErrAbortHandler)
	}
	data := []any{}
	for i, in := range inputs {
		v := vector(in, dimensions)
		var embedding any = v
		if req.Encoding == "base64" {
			embedding = base64.StdEncoding.EncodeToString(encodeFloats(v))
		}
		data = append(data, object{"object": "embedding", "index": i, "embedding": embedding})
	}
	if bill, ok := r.Context().Value(billFuncKey{}).(func(caisson.TokenCount)); ok {
		bill(caisson.TokenCount{Input: tokens})
	}
	writeJSON(w, http.StatusOK, object{
		"object": "list", "data": data, "model": req.Model, "usage": object{"prompt_tokens": tokens, "total_tokens": tokens},
	})
	return nil
}

// embeddingInputs parses a text, a list of texts, tokens, or a list of lists of tokens, and returns the number of tokens.
func embeddingInputs(raw json.RawMessage) (inputs []string, tokens int64, err error) {
	var text string
	var texts []string
	var ids []int64
	var lists [][]int64
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, 0, invalid("input", "is required")
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(raw, &texts) == nil:
	case json.Unmarshal(raw, &ids) == nil:
		lists = [][]int64{ids}
	case json.Unmarshal(raw, &lists) == nil:
	default:
		return nil, 0, invalid("input", "is neither text nor tokens, nor a list of one of them")
	}
	for _, list := range lists {
		if len(list) == 0 {
			return nil, 0, invalid("input", "cannot be empty")
		}
		b, _ := json.Marshal(list) // encoding numbers cannot fail
		inputs, tokens = append(inputs, string(b)), tokens+int64(len(list))
	}
	if lists == nil {
		for _, t := range texts {
			if t == "" {
				return nil, 0, invalid("input", "cannot be an empty string")
			}
			tokens += estimateTokens(int64(len(t)))
		}
		inputs = texts
	}
	if len(inputs) == 0 || len(inputs) > maxInputs {
		return nil, 0, invalid("input", "must have from 1 to %d elements", maxInputs)
	}
	return inputs, tokens, nil
}

// vector returns a unit vector derived from the hash of text.
func vector(text string, dimensions int) []float32 {
	v := make([]float32, dimensions)
	seed := sha256.Sum256([]byte(text))
	var sum float64
	for i := range v {
		if i%8 == 0 && i > 0 {
			seed = sha256.Sum256(seed[:])
		}
		x := float64(int32(binary.LittleEndian.Uint32(seed[i%8*4:]))) / math.MaxInt32
		v[i] = float32(x)
		sum += x * x
	}
	if norm := math.Sqrt(sum); norm > 0 {
		for i := range v {
			v[i] = float32(float64(v[i]) / norm)
		}
	}
	return v
}

// encodeFloats encodes v in little-endian byte order, as OpenAI's API does for base64.
func encodeFloats(v []float32) []byte {
	b := make([]byte, 0, len(v)*bytesPerFloat)
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}
