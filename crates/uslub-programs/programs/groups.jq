# Groups, sorts, rewrites and counts an array of objects.
(group_by(.group) | map({
    group: .[0].group,
    count: length,
    sum: (map(.number) | add),
    words: (map(.words[]) | unique | length),
    longest: (map(.text) | max_by(length)),
})),
(map(.words[]) | group_by(.) | map({key: .[0], value: length}) | sort_by(-.value, .key) | .[:50]),
(map(select(.number % 3 == 0) | .text |= (ascii_upcase | gsub("SLAB"; "<slab>")))
  | sort_by(.text, .number) | .[:200]),
(reduce .[:1000][] as $item ({}; .[$item.words[0]] += $item.number))
