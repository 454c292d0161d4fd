//! An order book: orders at a price wait in a linked list, first come, first served.
//!
//! Orders are objects of a cache, linked by raw pointers, as in the kernel's lists: an order is
//! found, cancelled and freed without a search. A market order may touch several levels; what it
//! needs is set aside before the book is changed, so that nothing can fail half-way.
//!
//! Run with `cargo run --release -p uslub --example order_book`.

use std::collections::BTreeMap;
use std::error::Error;
use std::ptr::NonNull;

use uslub::{AllocError, Cache, Prefilled};

/// An order that waits.
struct Order {
    id: u64,
    price: u32,
    quantity: u32,
    before: Option<NonNull<Order>>,
    after: Option<NonNull<Order>>,
}

/// What was bought.
struct Trade {
    order: u64,
    price: u32,
    quantity: u32,
}

/// First and last order at a price.
type Level = (NonNull<Order>, NonNull<Order>);

/// Those who sell.
struct Book<'c> {
    orders: &'c Cache<Order>,
    levels: BTreeMap<u32, Level>,
}

impl<'c> Book<'c> {
    fn new(orders: &'c Cache<Order>) -> Self {
        Self {
            orders,
            levels: BTreeMap::new(),
        }
    }

    /// Puts an order at the end of its level.
    fn sell(&mut self, id: u64, price: u32, quantity: u32) -> Result<NonNull<Order>, AllocError> {
        let before = self.levels.get(&price).map(|level| level.1);
        let order = Order {
            id,
            price,
            quantity,
            before,
            after: None,
        };
        let object = self.orders.alloc(order).map_err(|error| error.map(drop))?;
        let order = uslub::Object::into_raw(object);
        if let Some(mut before) = before {
            // SAFETY: orders in the book are alive, and the book is ours.
            unsafe { before.as_mut() }.after = Some(order);
        }
        let level = self.levels.entry(price).or_insert((order, order));
        level.1 = order;
        Ok(order)
    }

    /// Takes an order out, wherever it stands.
    ///
    /// # Safety
    ///
    /// The order is in this book.
    unsafe fn cancel(&mut self, order: NonNull<Order>) {
        // SAFETY: by the caller's promise, and its neighbours are in the book with it.
        unsafe {
            let Order {
                price,
                before,
                after,
                ..
            } = order.read();
            if let Some(mut before) = before {
                before.as_mut().after = after;
            }
            if let Some(mut after) = after {
                after.as_mut().before = before;
            }
            match (before, after) {
                (None, None) => _ = self.levels.remove(&price),
                (None, Some(first)) => self.level(price).0 = first,
                (Some(last), None) => self.level(price).1 = last,
                (Some(_), Some(_)) => {}
            }
            self.orders.free_raw(order);
        }
    }

    fn level(&mut self, price: u32) -> &mut Level {
        self.levels.get_mut(&price).expect("an order has a level")
    }

    /// Buys from the cheapest on. `trades` has an object for each order that it may touch.
    fn buy<'t>(
        &mut self,
        mut quantity: u32,
        trades: &mut Prefilled<'t, Trade>,
    ) -> Vec<uslub::Object<'t, Trade>> {
        let mut done = Vec::new();
        while quantity > 0
            && trades.remaining() > 0
            && let Some((&price, &(mut first, _))) = self.levels.first_key_value()
        {
            // SAFETY: in the book, which is ours.
            let order = unsafe { first.as_mut() };
            let n = quantity.min(order.quantity);
            quantity -= n;
            order.quantity -= n;
            let (order, left) = (order.id, order.quantity);
            // Cannot fail: it was set aside.
            done.push(trades.alloc(Trade {
                order,
                price,
                quantity: n,
            }));
            if left == 0 {
                // SAFETY: in the book.
                unsafe { self.cancel(first) };
            }
        }
        done
    }
}

impl Drop for Book<'_> {
    fn drop(&mut self) {
        while let Some((_, &(first, _))) = self.levels.first_key_value() {
            // SAFETY: in the book.
            unsafe { self.cancel(first) };
        }
    }
}

/// Plays through the book once.
///
/// # Errors
///
/// When there is no memory.
pub fn main() -> Result<(), Box<dyn Error>> {
    let orders = Cache::builder("order")
        .hwcache_align()
        .limit(64 << 20)
        .build()?;
    let trades = Cache::builder("trade").prefault(true).build()?;

    let mut book = Book::new(&orders);
    let mut cancellable = Vec::new();
    for id in 0..10_000 {
        let order = book.sell(id, 100 + (id * 7 % 50) as u32, 10)?;
        if id % 3 == 0 {
            cancellable.push(order);
        }
    }
    for order in cancellable {
        // SAFETY: in the book until now.
        unsafe { book.cancel(order) };
    }

    // All that can fail comes first.
    let mut aside = trades.prefill(40)?;
    let bought = book.buy(385, &mut aside);
    let paid: u64 = bought
        .iter()
        .map(|t| u64::from(t.price) * u64::from(t.quantity))
        .sum();
    println!(
        "bought 385 for {paid}, first from order {}",
        bought[0].order
    );
    assert_eq!(bought.iter().map(|t| t.quantity).sum::<u32>(), 385);
    assert_eq!(bought.len(), 39);
    drop((bought, aside));

    print!("{}", uslub::slabinfo());
    drop(book);
    assert_eq!(orders.destroy(), Ok(()));
    assert_eq!(trades.destroy(), Ok(()));
    Ok(())
}
