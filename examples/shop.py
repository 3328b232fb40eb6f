"""The records of a small book shop: plain data and plain functions, as they might come from any database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Book:
    """A title. `back_on` is when a title that is out of stock comes in again."""

    title: str
    author: str
    cents: int
    stock: int
    back_on: date | None = None


@dataclass(frozen=True, slots=True)
class Carrier:
    """A parcel service: working days to near postcodes (0 to 4 in front) and to far ones."""

    name: str
    near_days: int
    far_days: int


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `left_on` is when the parcel left us, `arrived_on` when it was handed over."""

    number: str
    customer: str
    isbn: str
    copies: int
    ordered_on: date
    postcode: str
    carrier: str
    left_on: date | None = None
    arrived_on: date | None = None

    @property
    def status(self) -> Literal["delivered", "on its way", "being packed", "waiting for stock"]:
        """Where it is."""
        if self.arrived_on:
            return "delivered"
        if self.left_on:
            return "on its way"
        return "being packed" if BOOKS[self.isbn].stock >= self.copies else "waiting for stock"


BOOKS = {
    "9780141439518": Book("Pride and Prejudice", "Jane Austen", 899, 12),
    "9780140449136": Book("Crime and Punishment", "Fyodor Dostoevsky", 1299, 4),
    "9780141439600": Book("A Tale of Two Cities", "Charles Dickens", 999, 0, date(2026, 3, 16)),
    "9780143039433": Book("The Grapes of Wrath", "John Steinbeck", 1499, 7),
    "9780141182803": Book("Ulysses", "James Joyce", 1699, 2),
    "9780140447934": Book("War and Peace", "Leo Tolstoy", 1899, 0, date(2026, 3, 24)),
    "9780141439471": Book("Frankenstein", "Mary Shelley", 799, 21),
    "9780141441146": Book("Jane Eyre", "Charlotte Brontë", 949, 9),
}

CARRIERS = {"swift": Carrier("Swift Parcel", 1, 2), "post": Carrier("Post", 2, 4), "cargo": Carrier("Bike Cargo", 1, 5)}

ORDERS = {
    order.number: order
    for order in (
        Order("B-1001", "Marta Jensen", "9780141439518", 1, date(2026, 2, 2), "2100", "post", date(2026, 2, 3), date(2026, 2, 5)),
        Order("B-1002", "Tom Okafor", "9780140449136", 1, date(2026, 2, 4), "8041", "swift", date(2026, 2, 5), date(2026, 2, 9)),
        Order("B-1003", "Wen Li", "9780141439471", 3, date(2026, 2, 10), "1050", "cargo", date(2026, 2, 11), date(2026, 2, 12)),
        Order("B-1004", "Marta Jensen", "9780141182803", 1, date(2026, 2, 19), "2100", "swift", date(2026, 2, 20), date(2026, 2, 23)),
        Order("B-1005", "Ines Duarte", "9780141441146", 2, date(2026, 2, 23), "4400", "post", date(2026, 2, 24), date(2026, 2, 26)),
        Order("B-1006", "Tom Okafor", "9780143039433", 1, date(2026, 3, 2), "8041", "post", date(2026, 3, 3)),
        Order("B-1007", "Ravi Patel", "9780140447934", 1, date(2026, 3, 2), "6200", "swift"),
        Order("B-1008", "Marta Jensen", "9780140449136", 1, date(2026, 3, 3), "2100", "post", date(2026, 3, 5)),
        Order("B-1009", "Wen Li", "9780141182803", 1, date(2026, 3, 4), "1050", "cargo", date(2026, 3, 5)),
        Order("B-1010", "Ines Duarte", "9780141439600", 1, date(2026, 3, 4), "4400", "swift"),
        Order("B-1011", "Marta Jensen", "9780143039433", 2, date(2026, 3, 5), "2100", "swift"),
        Order("B-1012", "Jonas Weber", "9780141439518", 1, date(2026, 3, 5), "9220", "post", date(2026, 3, 6)),
        Order("B-1013", "Ravi Patel", "9780141439471", 1, date(2026, 3, 6), "6200", "post"),
        Order("B-1014", "Marta Jensen", "9780141439600", 1, date(2026, 3, 6), "2100", "post"),
        Order("B-1015", "Jonas Weber", "9780141441146", 4, date(2026, 3, 6), "9220", "swift"),
    )
}  # fmt: skip


def find(number: str) -> Order:
    """An order by its number. Raises `LookupError`."""
    try:
        return ORDERS[number.strip().upper()]
    except KeyError:
        raise LookupError(f"There is no order {number}. Ask the customer for the number on the receipt.") from None


def orders_of(customer: str) -> Iterator[Order]:
    """A customer's orders, oldest first."""
    return (order for order in ORDERS.values() if order.customer.casefold() == customer.strip().casefold())


def arrival(order: Order, postcode: str = "") -> date:
    """When an order arrives, or has arrived: packing takes a working day, and no parcel moves at the weekend."""
    if order.arrived_on:
        return order.arrived_on
    left_on = order.left_on or working_days(_ready(order), 1)
    carrier = CARRIERS[order.carrier]
    return working_days(left_on, carrier.near_days if (postcode or order.postcode)[0] < "5" else carrier.far_days)


def working_days(start: date, days: int) -> date:
    """The day that is so many working days after `start`."""
    while days:
        start += timedelta(days=1)
        days -= start.weekday() < 5
    return start


def _ready(order: Order) -> date:
    book = BOOKS[order.isbn]
    return max(order.ordered_on, book.back_on) if book.back_on and book.stock < order.copies else order.ordered_on
