package gemini

import (
	"bytes"
	"encoding/base64"
	"image"
	_ "image/gif" // makes image.DecodeConfig support GIF
	_ "image/jpeg"
	_ "image/png"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

func (c *checker) content(v strictjson.Value) error {
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "role":
			return checkString(v)
		case "parts":
			return eachElement(v, c.part)
		}
		return errUnknown
	})
}

func (c *checker) part(v strictjson.Value) error {
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "text", "thoughtSignature":
			return checkString(v)
		case "thought":
			if _, ok := v.Bool(); !ok {
				return strictjson.Refuse("", "it has to be true or false")
			}
			return nil
		case "inlineData":
			return c.inline(v)
		case "fileData":
			return c.file(v)
		case "functionCall":
			c.tokens += v.Growth()
			return checkFields(v, "id", "name", "args")
		case "functionResponse":
			return c.functionResponse(v)
		case "videoMetadata":
			return checkFields(v, "startOffset", "endOffset", "fps")
		case "mediaResolution":
			if v.Kind() == '"' {
				return nil
			}
			return checkFields(v, "level", "numTokens")
		case "executableCode":
			if err := c.providerPart(); err != nil {
				return err
			}
			return checkFields(v, "id", "language", "code")
		case "codeExecutionResult":
			if err := c.providerPart(); err != nil {
				return err
			}
			return checkFields(v, "id", "outcome", "output")
		}
		return errUnknown
	})
}

// providerPart checks that the guest may send parts that come from tools that the provider runs.
func (c *checker) providerPart() error {
	if !c.allow.ProviderTools {
		return refuseGrant("results of tools that the provider runs", caisson.GrantProviderTools)
	}
	return nil
}

// functionResponse checks the result of a function, which may contain parts with media only.
func (c *checker) functionResponse(v strictjson.Value) error {
	c.tokens += v.Get("response").Growth()
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "id", "name", "response", "willContinue", "scheduling":
			return nil
		case "parts":
			return eachElement(v, func(v strictjson.Value) error {
				return eachField(v, func(name string, v strictjson.Value) error {
					switch name {
					case "inlineData":
						return c.inline(v)
					case "fileData":
						return c.file(v)
					}
					return errUnknown
				})
			})
		}
		return errUnknown
	})
}

// inline checks media in the body. The tokens of images are bounded by their size in pixels, and those of text by its bytes.
// Audio and video are refused. The size of documents does not bound their tokens.
func (c *checker) inline(v strictjson.Value) error {
	var mime string
	var data strictjson.Value
	err := eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "mimeType":
			mime, _ = v.Text()
		case "data":
			data = v
		case "displayName":
		default:
			return errUnknown
		}
		return checkString(v)
	})
	if err != nil {
		return err
	}
	if data == nil || mime == "" {
		return strictjson.Refuse("", "it needs the strings mimeType and data")
	}
	if kind := strings.ToLower(strings.TrimSpace(mime)); strings.HasPrefix(kind, "audio/") || strings.HasPrefix(kind, "video/") {
		return strictjson.Refuse("mimeType", "sound and films have prices of their own, which are not known here; send a transcript or single images")
	}
	if strings.HasPrefix(mime, "text/") {
		return nil // a text, whose bytes bound its tokens
	}
	c.tokens -= int64(len(data))
	tokens, ok := imageTokens(data.Bytes())
	if !ok || !strings.HasPrefix(mime, "image/") {
		c.unbounded = true
		return nil
	}
	c.tokens += tokens
	c.images++
	c.imageTokens += tokens
	return nil
}

// imageTokens bounds the tokens of an image: 258 per tile. The side of a tile is two thirds of the image's shorter side, but from
// 256 to 768 pixels. Newer models use at most 2240 tokens per image. Returns false if the image cannot be decoded.
func imageTokens(data []byte) (int64, bool) {
	encoding := base64.RawStdEncoding
	data = bytes.TrimRight(data, "=")
	if bytes.ContainsAny(data, "-_") {
		encoding = base64.RawURLEncoding
	}
	config, _, err := image.DecodeConfig(io.LimitReader(base64.NewDecoder(encoding, bytes.NewReader(data)), 1<<20))
	if err != nil || config.Width < 1 || config.Height < 1 {
		return 0, false
	}
	w, h := int64(config.Width), int64(config.Height)
	tile := min(max(min(w, h)*2/3, 256), 768)
	return max(2240, 258*(w/tile+2)*(h/tile+2)), true
}

// file checks a file that the provider fetches from its own storage or from another server.
func (c *checker) file(v strictjson.Value) error {
	c.unbounded = true
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "mimeType", "displayName":
			return checkString(v)
		case "fileUri":
			uri, ok := v.Text()
			if !ok {
				return checkString(v)
			}
			// A URI that is not https, or contains googleapis.com, is the id of a file that is stored at the provider.
			if !strings.HasPrefix(uri, "https://") || strings.Contains(strings.ToLower(uri), "googleapis.com") {
				return c.serverID(v)
			}
			if !c.allow.RemoteURLs {
				return refuseGrant("URLs that the provider fetches", caisson.GrantRemoteURLs)
			}
			return nil
		}
		return errUnknown
	})
}
