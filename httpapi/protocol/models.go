package protocol

// MaxPriceList is the maximum size of a price list in bytes.
const MaxPriceList = 16 << 20

// Imported is the response to an import of prices.
type Imported struct {
	Models int `json:"models" doc:"How many models have a price in the list"`
}
