//! The examples do what they say.

#[path = "../examples/order_book.rs"]
#[allow(dead_code)]
mod order_book;

#[test]
fn the_order_book_buys_and_leaves_nothing_behind() {
    order_book::main().unwrap();
}
