package baseline

// ScanUpTo is Scan with another limit on the number of records, for tests.
var ScanUpTo = scanUpTo
