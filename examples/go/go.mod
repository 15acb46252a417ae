module farrow-example

go 1.17
