module trialtap.dev/bench/go-webhook

go 1.22
