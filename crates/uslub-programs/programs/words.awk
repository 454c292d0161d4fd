# Counts words in associative arrays and builds strings.
{
    lines += 1
    sum[$1 % 1000] += $1
    for (i = 2; i <= NF; i++) {
        count[$i] += 1
        pairs[$i, $1 % 10] += 1
    }
    joined[$1 % 5000] = joined[$1 % 5000] "," $NF
    if ($1 % 7 == 0) {
        delete count[$2]
    }
}
END {
    for (word in count) {
        words += 1
        uses += count[word]
        letters += length(word)
    }
    for (pair in pairs) {
        kinds += 1
        split(pair, part, SUBSEP)
        digits[part[2]] += pairs[pair]
    }
    for (key in joined) {
        text = joined[key]
        gsub(/slab|sheaf/, "<&>", text)
        bytes += length(text)
    }
    print lines, words, uses, letters, kinds, bytes
    for (digit = 0; digit < 10; digit++) {
        printf "%d %d\n", digit, digits[digit]
    }
    for (key = 0; key < 1000; key++) {
        printf "%03d %.0f %s\n", key, sum[key], substr(joined[key], 2, 200)
    }
}
