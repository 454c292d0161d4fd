//! The records of a report, as the command parses them and writes them.

use serde::{Deserialize, Serialize};

macro_rules! define {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name<'a> {
            $($(#[$field_doc])* pub $field: $type,)*
        }
    )*};
}

uslub_report::records!(define);
