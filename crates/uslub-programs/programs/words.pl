# Hashes, nested structures, regular expressions, sorting and growing strings.
use strict;
use warnings;

my (%count, %by_digit, $text);
while (my $line = <>) {
    chomp $line;
    my ($number, @words) = split / /, $line;
    $count{$_}++ for @words;
    push @{ $by_digit{ $number % 1000 }{ substr $words[0], 0, 2 } }, $number;
    $text .= "$number-" . reverse($words[-1]) . ';';
}
print length($text), "\n";

my $found = 0;
while ($text =~ /(\d+)-((?:ba|ls|fa)[a-z]+);/g) {
    $found += $1 % 10 + length $2;
}
(my $changed = $text) =~ s/(\w+?)-(\w)/$2$1/g;
print "$found ", length($changed), "\n";

for my $word ((sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count)[0 .. 199]) {
    print "$word $count{$word}\n";
}
for my $digit (sort { $a <=> $b } keys %by_digit) {
    my $group = $by_digit{$digit};
    print join(' ', $digit, map { $_ . scalar @{ $group->{$_} } } sort keys %$group), "\n";
}
my @records = map { { key => ($_ * 7919) % 100_003, name => "record $_" } } 1 .. 100_000;
my @sorted = sort { $a->{key} <=> $b->{key} } @records;
print join("\n", map { "$_->{key} $_->{name}" } @sorted[ 0 .. 99 ]), "\n";
