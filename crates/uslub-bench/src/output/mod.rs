//! The results of a run and their presentation: on a terminal, as a page for a browser, as JSON.
//! `seeds` and `peers` fill it.
//!
//! | file | concept |
//! |---|---|
//! | `row` | one measurement: its figures, and whether its goal is met |
//! | `report` | all rows of a run, by section; its JSON |
//! | `figure` | numbers as text |
//! | `table` | a report as text |
//! | `page`, `chart` | a report as HTML, and its charts |

mod chart;
mod figure;
mod page;
mod report;
mod row;
mod table;

pub use chart::Chart;
pub use figure::figure;
pub use page::html;
pub use report::{Competitors, Report, Section, Words};
pub use row::{Cell, Figures, Row};
pub use table::{text, verdict};
