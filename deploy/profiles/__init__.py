"""Complete configuration documents for `forebay up` without a file of one's own."""
