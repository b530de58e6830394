package baseline

// ScanUpTo is Scan with another limit of records, for tests.
var ScanUpTo = scanUpTo
